"""Option createTable over a real server: the table is made by a start, and shown by a check."""

from __future__ import annotations

import pyarrow as pa
import pytest

from wal_sink.demo.servers.postgresql import Server
from wal_sink.errors import WalSinkError
from wal_sink.targets.base import RowSlice
from wal_sink.targets.postgresql import PostgresqlOptions, PostgresqlTarget
from wal_sink.testing.contracts.ledger import create
from wal_sink.testing.contracts.rows import deliver

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("day", pa.date32()),
        ("price", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
    ]
)
ROW = {"id": [1], "day": [0], "price": [None], "at": [None], "tags": [["x"]]}


def target(server: Server, schema: str, **changes: object) -> PostgresqlTarget:
    """Return a target whose table is missing."""
    options = {"mode": "upsert", "create_table": True, "key_columns": "id,day"} | changes
    return PostgresqlTarget(PostgresqlOptions(uri=server.uri, table=f"{schema}.orders", **options))  # type: ignore[arg-type]


def tables(server: Server, schema: str) -> list[str]:
    """List the tables of a schema."""
    query = "SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY 1"
    return [name for (name,) in server.execute(query, [schema])]


def test_check_shows_the_table_that_a_start_makes(postgresql: Server, schema: str) -> None:
    """With its key and partitions; rows go there, and the next start leaves it as it is."""
    made = target(postgresql, schema, partition_columns="day")
    shown = made.dry_plan(SCHEMA, "key").creates
    assert tables(postgresql, schema) == []
    assert '"price" numeric(12,2)' in shown
    assert 'PRIMARY KEY ("id", "day")' in shown
    plans = [made.plan(SCHEMA, "key") for _ in range(2)]
    assert plans[0] == plans[1]
    assert plans[0].creates == ""
    assert tables(postgresql, schema) == ["orders", "orders_default", "wal_sink_ledger"]
    rows = made.check(pa.record_batch(ROW, schema=SCHEMA), plans[0])
    with made.connect("query") as session:
        create(session, "query")
        for epoch in range(2):
            deliver(session, plans[0], RowSlice(epoch, rows, 0))
    assert postgresql.execute(f"SELECT id, tags FROM {schema}.orders") == [(1, ["x"])]


def test_statement_of_a_check_can_be_run(postgresql: Server, schema: str) -> None:
    """As it stands there."""
    postgresql.execute(target(postgresql, schema).dry_plan(SCHEMA, "key").creates)
    assert target(postgresql, schema).dry_plan(SCHEMA, "key").creates == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"key_columns": ""}, "needs a key"),
        ({"mode": "append"}, "second row of a key"),
        ({"key_columns": "id,id"}, "has 'id' twice"),
        ({"create_table": False}, "keyColumns is given without createTable"),
        (
            {"create_table": False, "key_columns": "", "partition_columns": "day"},
            "partitionColumns",
        ),
        ({"key_columns": "id,dya"}, "Did you mean day"),
        ({"key_columns": "id", "partition_columns": "day"}, "must include all partitioning col"),
    ],
)
def test_table_that_cannot_be_made_is_refused(
    postgresql: Server, schema: str, options: dict[str, object], words: str
) -> None:
    """Options without effect included."""
    with pytest.raises(WalSinkError, match=words):
        target(postgresql, schema, **options).plan(SCHEMA, "key")
    assert tables(postgresql, schema) == []
