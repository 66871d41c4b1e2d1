"""`SqlTarget` over a driver whose parameter is `%s`: a plain target, as an author writes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from wal_sink.errors import TargetRefused
from wal_sink.targets.base import Target
from wal_sink.targets.sql import SqlOptions, SqlTarget, TableColumn
from wal_sink.testing.contracts.restart import RestartContract
from wal_sink.testing.contracts.rows import SCHEMA, DoubleRecord, Record, frame
from wal_sink.testing.contracts.transactional import SqlContract
from wal_sink.testing.servers.postgresql import Server

TYPES = {
    "text": pa.string(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "double precision": pa.float64(),
}
NAMES = ["k%s", "n%", "v", "t%%t", "d"]


class PlainOptions(SqlOptions, frozen=True, kw_only=True):
    """Where the server is."""

    uri: str


class PlainTarget(SqlTarget):
    """Adds rows by INSERT."""

    name = "plain"
    parameter = "%s"
    transient = (psycopg.OperationalError,)
    options: PlainOptions

    def open(self) -> Any:
        return psycopg.connect(self.options.uri, options="-c lock_timeout=500ms")

    def columns(self, connection: Any) -> Sequence[TableColumn]:
        found = connection.execute(
            "SELECT column_name, data_type FROM information_schema.columns"
            " WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
            self.options.table.split("."),
        )
        return [TableColumn(name, type_, default=True) for name, type_ in found]

    def arrow_type(self, type_: str) -> pa.DataType | None:
        return TYPES.get(type_)


class TestPercent(SqlContract, RestartContract):
    """Table, ledger and columns have a `%` in their names."""

    @pytest.fixture
    def target(self, postgresql: Server, schema: str) -> PlainTarget:
        self.server = postgresql
        postgresql.execute(
            f'CREATE TABLE {schema}."rows%s" ("k%s" text, "n%" integer, v bigint, "t%%t" text,'
            " d double precision)"
        )
        ledger = f"{schema}.ledger%d"
        options = PlainOptions(uri=postgresql.uri, table=f"{schema}.rows%s", ledger_table=ledger)
        return PlainTarget(options)

    def frame(self, records: Sequence[Record | DoubleRecord]) -> pa.RecordBatch:
        made = frame(records)
        return made.rename_columns(NAMES[: made.num_columns])

    def records(self, target: Target) -> list[Record]:
        assert isinstance(target, PlainTarget)
        return [row[:4] for row in self.server.execute(f"SELECT * FROM {target.table_name}")]

    def doubles(self, target: Target) -> list[float | None]:
        assert isinstance(target, PlainTarget)
        return [d for (d,) in self.server.execute(f"SELECT d FROM {target.table_name}")]

    def restart(self, target: Target) -> None:
        self.server.kill()
        self.server.start()


def test_an_update_that_counts_changed_rows_only_is_refused(
    postgresql: Server, schema: str
) -> None:
    """A trigger makes PostgreSQL count as MySQL does by default: a flusher would read a refusal."""
    postgresql.execute(f"CREATE TABLE {schema}.rows (k text, n integer, v bigint, t text)")
    options = PlainOptions(
        uri=postgresql.uri, table=f"{schema}.rows", ledger_table=f"{schema}.ledger"
    )
    target = PlainTarget(options)
    target.plan(SCHEMA, "key")
    postgresql.execute(
        f"CREATE TRIGGER z BEFORE UPDATE ON {schema}.ledger"
        " FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()"
    )
    with pytest.raises(TargetRefused, match="has the rowcount 0") as caught:
        target.plan(SCHEMA, "key")
    assert "count the rows that are found" in caught.value.remedy
