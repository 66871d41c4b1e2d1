"""One query into PostgreSQL, SQLite and Delta Lake under SIGKILL: all three equal the source.

None of the tables has a key, so no upsert can hide a row that was written twice.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import wal_sink
from state_backends import open_backend
from tests.protocol import raw
from tests.spark.application import Application
from wal_sink.demo.postgresql import Server

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

FILES, ROWS = 5, 40
BOOKINGS = [(f"a{n % 3}", n % 5) for n in range(ROWS)]

Bookings = list[tuple[str, int]]


class Bank:
    """The three tables, as other clients read them."""

    def __init__(self, server: Server, schema: str, folder: Path) -> None:
        self._server, self._books = server, f"{schema}.bookings"
        server.execute(f"CREATE TABLE {self._books} (account text NOT NULL, amount numeric(9))")
        file, self._lake = folder / "bank.db", str(folder / "lake")
        self._copies = sqlite3.connect(file, isolation_level=None)
        self._copies.execute("CREATE TABLE copies (account TEXT NOT NULL, amount INTEGER NOT NULL)")
        lake = pa.schema([("account", pa.string()), ("amount", pa.int64())])
        DeltaTable.create(self._lake, lake)
        self.options = {
            "targets": "books,copy,lake",
            "books.target": "wal_sink.demo.postgresql:PausingPostgresql",
            "books.postgresql.uri": server.uri,
            "books.table": self._books,
            "copy.target": "sqlite_target:SqliteTarget",
            "copy.sqlite.path": str(file),
            "copy.table": "copies",
            "lake.target": "delta",
            "lake.delta.path": self._lake,
            "wal.retention": "0",
            "flush.distributedAboveBytes": "0",  # the tasks of jobs stage Delta's rows
        }

    def close(self) -> None:
        """Close the connection to the file."""
        self._copies.close()

    def books(self) -> Bookings:
        """Read the rows in PostgreSQL."""
        result = self._server.execute(f"SELECT account, amount FROM {self._books}")
        return whole([(str(account), int(amount)) for account, amount in result])

    def copies(self) -> Bookings:
        """Read the rows in SQLite."""
        return whole(self._copies.execute("SELECT account, amount FROM copies").fetchall())

    def lake(self) -> Bookings:
        """Read the rows in Delta Lake."""
        rows = DeltaTable(self._lake).to_pyarrow_table().to_pylist()
        return whole([(row["account"], row["amount"]) for row in rows])

    def fewest_rows(self) -> int:
        """Return the smaller number of rows of SQLite and Delta Lake."""
        return min(len(self.copies()), len(self.lake()))

    def staged(self) -> tuple[int, int]:
        """Return how many files the Delta table has, and how many commits have added rows."""
        table = DeltaTable(self._lake)
        metadata = [commit.get("userMetadata", "") for commit in table.history()]
        return len(table.file_uris()), sum(
            words.startswith("wal_sink: epochs ") for words in metadata
        )


def whole(rows: Bookings) -> Bookings:
    """Check that the rows are of whole epochs, and return them."""
    assert len(rows) % ROWS == 0, "a part of an epoch is visible"
    return rows


def last(folder: Path) -> int:
    """Return the last epoch that Spark has checkpointed.

    It varies: if Spark is killed after it has recorded a file and before it has planned the epoch, the next
    epoch has two files.
    """
    names = [path.name for path in (folder / "checkpoint" / "commits").iterdir()]
    return max(int(name) for name in names if name.isdecimal())


@pytest.fixture
def bank(postgresql: Server, schema: str, tmp_path: Path) -> Iterator[Bank]:
    """Make the tables."""
    with contextlib.closing(Bank(postgresql, schema, tmp_path)) as made:
        yield made


@pytest.mark.test_all
def test_killed_query_writes_each_booking_once_per_target(bank: Bank, tmp_path: Path) -> None:
    """The application is killed after a commit of PostgreSQL, and before the mark in the log.

    The other two targets have at least two epochs by then. `status` reports all targets, and each.
    """
    (tmp_path / "source").mkdir()
    for number in range(FILES):
        text = "\n".join(json.dumps({"account": a, "amount": b}) for a, b in BOOKINGS)
        (tmp_path / "source" / f"{number}.json").write_text(text)
    config = {"folder": str(tmp_path), "format": "json", "schema": "account string, amount bigint"}
    queries = {"queries": {"checkpoint": bank.options}}
    app = Application(tmp_path, "tests.spark.killed_app", config | queries)

    def mark_lags() -> None:
        """Check that the table has rows, and that the log does not have its mark."""
        books, *_ = wal_sink.status(str(tmp_path / "checkpoint")).targets
        assert bank.books()
        assert (books.target, books.flushed) == ("books", -1)

    app.die(
        [app.pause("bookings", "finished", 0)], lambda: bank.fewest_rows() >= 2 * ROWS, mark_lags
    )
    (drivers,) = (json.loads(line) for line in app.finish().splitlines() if line.startswith('["'))
    assert drivers == ["deltalake", "psycopg", "sqlite3"], "it loads no other driver"

    assert sorted(bank.books()) == sorted(BOOKINGS * FILES)
    assert sorted(bank.copies()) == sorted(bank.lake()) == sorted(BOOKINGS * FILES)
    files, commits = bank.staged()
    assert files > commits > 0, "no job has staged anything"
    progress = wal_sink.status(str(tmp_path / "checkpoint"))
    assert [target.target for target in progress.targets] == ["books", "copy", "lake"]
    assert (progress.flushed, progress.pending_epochs, progress.safe_to_delete) == (
        last(tmp_path),
        0,
        True,
    )
    log = open_backend(progress.log)
    marks = [target["mark"] for target in raw.state(log)["targets"]]
    assert len(marks) == 3
    assert len({mark["digest"] for mark in marks}) == 1, "two histories"
    assert {mark["sums"]["rows"] for mark in marks} == {FILES * ROWS}
    assert log.list("manifests/") == [], "what all have is trimmed"
