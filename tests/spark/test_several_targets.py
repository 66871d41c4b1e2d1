"""One query into PostgreSQL and SQLite under SIGKILL: both tables equal the source."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

import wal_sink
from tests.spark.test_adding_rows import BOOKINGS, FILES, ROWS, Bookings, under_kills
from wal_sink.testing.postgresql.server import Server

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def copies(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Make the second table; return a connection of another client to it."""
    connection = sqlite3.connect(tmp_path / "bank.db", isolation_level=None)
    connection.execute("CREATE TABLE copies (account TEXT NOT NULL, amount INTEGER NOT NULL)")
    yield connection
    connection.close()


def test_each_booking_is_in_both_tables_once(
    postgresql: Server, schema: str, copies: sqlite3.Connection, tmp_path: Path
) -> None:
    """Killed when the one that is behind has two epochs; and `status` is about both, or each."""
    postgresql.execute(f"CREATE TABLE {schema}.bookings (account text NOT NULL, amount numeric(9))")

    def booked() -> Bookings:
        found = postgresql.execute(f"SELECT account, amount FROM {schema}.bookings")
        return [(str(account), int(amount)) for account, amount in found]

    def copied() -> Bookings:
        return copies.execute("SELECT account, amount FROM copies").fetchall()

    options = {
        "targets": "books,copy",
        "books.target": "postgresql",
        "books.postgresql.uri": postgresql.uri,
        "books.table": f"{schema}.bookings",
        "copy.target": "sqlite_target:SqliteTarget",
        "copy.sqlite.path": str(tmp_path / "bank.db"),
        "copy.table": "copies",
    }
    drivers = under_kills(tmp_path, options, lambda: min(booked(), copied(), key=len))
    assert drivers == ["psycopg", "sqlite3"]
    assert sorted(booked()) == sorted(copied()) == sorted(BOOKINGS * FILES)
    found = wal_sink.status(str(tmp_path / "checkpoint"))
    assert [each.target for each in found.targets] == ["books", "copy"]
    assert (found.flushed, found.pending_epochs, found.safe_to_delete) == (FILES - 1, 0, True)
    log = Path(found.log.removeprefix("file://"))
    flushed = {
        name: [json.loads(path.read_text()) for path in sorted((log / "flushed" / name).iterdir())]
        for name in ("books", "copy")
    }
    digests = [[record["digest"] for record in records] for records in flushed.values()]
    assert digests[0] == digests[1], "two histories"
    assert sum(record["rows"] for record in flushed["copy"]) == FILES * ROWS
    assert not list((log / "manifests").glob("*")), "what both have is trimmed"
