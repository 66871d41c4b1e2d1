"""The start checks and task checks of `SqlTarget`, over SQLite."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pyarrow as pa
import pytest

from sqlite_target import SqliteOptions, SqliteTarget
from wal_sink.errors import (
    InvalidRow,
    OptionError,
    SchemaMismatch,
    TargetUnavailable,
)
from wal_sink.targets.base import ErrorClass, RowSlice
from wal_sink.targets.sql import SqlTarget
from wal_sink.testing.contracts.ledger import create, row_of
from wal_sink.testing.contracts.rows import deliver

TABLE = "CREATE TABLE t (Id INTEGER, price REAL, name TEXT, other NUMERIC)"
PRICES = pa.schema([("Id", pa.int64()), ("price", pa.float64())])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a database file with a table and without a ledger."""
    path = tmp_path / "shop.db"
    execute(path, TABLE)
    return path


def execute(path: Path, statement: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        with connection:
            return connection.execute(statement).fetchall()
    finally:
        connection.close()


def options(path: Path) -> SqliteOptions:
    return SqliteOptions(path=str(path), table="t")


class CommittingTarget(SqliteTarget):
    """A target whose connections commit each statement."""

    def open(self) -> sqlite3.Connection:
        return sqlite3.connect(self.options.path, isolation_level=None)


def test_ledger_that_ignores_rollback_is_refused(path: Path) -> None:
    """Otherwise rows and ledger row would not change in one transaction."""
    with pytest.raises(SchemaMismatch, match="stays after ROLLBACK") as caught:
        CommittingTarget(options(path)).plan(PRICES, "key")
    assert "transactions" in caught.value.remedy
    assert execute(path, "SELECT * FROM wal_sink_ledger") == []


class ClosesOnceConnection(sqlite3.Connection):
    """Raises an error at the second `close`, as some drivers do."""

    closed = False

    def close(self) -> None:
        if self.closed:
            raise sqlite3.ProgrammingError("already closed")
        self.closed = True
        super().close()


class ClosesOnceTarget(SqliteTarget):
    def open(self) -> sqlite3.Connection:
        return sqlite3.connect(self.options.path, factory=ClosesOnceConnection)


def test_session_closes_its_connection_once(path: Path) -> None:
    """A flusher may close a session twice."""
    target = ClosesOnceTarget(options(path))
    target.plan(PRICES, "key")
    session = target.connect("query")
    session.close()
    session.close()


class ReadingTarget(SqliteTarget):
    """A target whose user may not create tables."""

    def open(self) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{self.options.path}?mode=ro", uri=True)


class CoarseTarget(ReadingTarget):
    """A target that reports every error of its driver as fatal."""

    def classify(self, error: Exception) -> ErrorClass:
        return "fatal"


@pytest.mark.parametrize(
    ("target", "kind"), [(ReadingTarget, TargetUnavailable), (CoarseTarget, SchemaMismatch)]
)
def test_failed_ledger_creation_is_reported_with_its_ddl(
    path: Path, target: type[SqlTarget], kind: type[Exception]
) -> None:
    """The error has the CREATE TABLE statement, whatever the class of the driver's error."""
    with pytest.raises(kind, match="cannot be created: attempt to write") as caught:
        target(options(path)).plan(PRICES, "key")
    remedy = str(getattr(caught.value, "remedy", ""))
    ddl = remedy.partition("\n")[2]
    assert ddl.startswith("CREATE TABLE")
    execute(path, ddl)
    SqliteTarget(options(path)).plan(PRICES, "key")


@pytest.mark.parametrize("call", ["plan", "dry_plan", "connect"])
def test_file_that_is_not_a_database_is_refused(tmp_path: Path, call: str) -> None:
    """The error is an `OptionError` with a remedy, not an error of the driver."""
    path = tmp_path / "shop.db"
    path.write_bytes(b"no database" * 1_000)

    class OpeningTarget(SqliteTarget):
        def open(self) -> sqlite3.Connection:
            connection = super().open()
            connection.execute("PRAGMA user_version")
            return connection

    target = OpeningTarget(options(path))
    arguments = ("query",) if call == "connect" else (PRICES, "key")
    with pytest.raises(OptionError, match="sqlite refuses: DatabaseError: file is not a database"):
        getattr(target, call)(*arguments)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (pa.field("id", pa.int64()), "There is Id, which differs in upper and lower case only"),
        (pa.field("nane", pa.string()), "Did you mean name?"),
        (pa.field("price", pa.string()), r"the DataFrame's string\..*cast\(\"double\"\)"),
        (pa.field("Id", pa.timestamp("us", "UTC")), r"DataFrame's timestamp\..*cast\(\"bigint\"\)"),
        (pa.field("name", pa.list_(pa.decimal128(9, 2))), r"DataFrame's array<decimal\(9,2\)>"),
        (pa.field("other", pa.int64()), "is NUMERIC, which cannot be written"),
    ],
)
def test_unfit_column_is_refused_with_a_remedy(path: Path, field: pa.Field, text: str) -> None:
    """The error names types of Spark, since the user changes the DataFrame."""
    with pytest.raises(SchemaMismatch, match=text):
        SqliteTarget(options(path)).plan(pa.schema([field]), "key")


def test_value_outside_the_database_type_is_refused_in_tasks(path: Path) -> None:
    """SQLite would store NaN as null; the error names column and row."""
    target = SqliteTarget(options(path))
    plan = target.plan(PRICES, "key")
    rows = {"Id": [1, 2, 3], "price": [0.5, None, float("nan")]}
    batch = pa.record_batch(rows, schema=PRICES)
    with pytest.raises(
        InvalidRow,
        match=r"Column price of .* \(nan\) does not fit into REAL, in the row with Id=3, price=nan",
    ):
        target.check(batch, plan)
    assert target.check(batch.slice(0, 2), plan) == batch.slice(0, 2)


def test_rows_published_for_another_table_stop_the_flush(path: Path) -> None:
    execute(path, "CREATE TABLE other (Id INTEGER, price REAL)")
    plan = SqliteTarget(options(path)).plan(PRICES, "key")
    rows = RowSlice(0, pa.record_batch([[1], [2.0]], PRICES), 0)
    error = r'published for the table "t", .* "other"'
    with SqliteTarget(SqliteOptions(path=str(path), table="other")).connect("query") as session:
        create(session, "query")
        with pytest.raises(OptionError, match=error) as caught:
            deliver(session, plan, rows)
        assert "--option table=t`" in caught.value.remedy
        assert row_of(session).epoch == -1
    assert execute(path, "SELECT Id FROM other") == []
