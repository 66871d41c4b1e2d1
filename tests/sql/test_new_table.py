"""A missing table: its CREATE TABLE in the error, and option createTable."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.sql.stores import (
    ROW,
    SCHEMA,
    STORES,
    TABLE,
    DuckDb,
    Maria,
    Postgresql,
    Sqlite,
    Store,
    agreed,
    bring,
)
from wal_sink.errors import OptionError, SchemaMismatch

ODD_NAMES = pa.schema(
    [*SCHEMA, *((name, pa.string()) for name in ("select", 'a"b', "a`b", "50%", "%s"))]
)


def test_ddl_of_a_missing_table_can_be_pasted(store: Store) -> None:
    """The names need quotes. The statements of the error and of the check run unchanged."""
    ledger: dict[str, Any] = {"ledger_table": "ledger%d"}
    append = store.target(**ledger)
    upsert = store.target(**ledger, mode="upsert", create_table=True, key_columns="id,name")
    with pytest.raises(SchemaMismatch, match=r"There is no table .*t\.") as caught:
        agreed(append, ODD_NAMES)
    remedy, _, in_error = caught.value.remedy.partition("\n")
    assert "createTable to true if this query has not written to the table yet" in remedy
    shown = upsert.dry_plan(ODD_NAMES, "key").creates
    row = pa.record_batch([[1], *[["x"]] * (len(ODD_NAMES) - 1)], schema=ODD_NAMES)
    for ddl, target in ((in_error, append), (shown, upsert)):
        store.paste(ddl)
        assert target.dry_plan(ODD_NAMES, "key").creates == ""
        bring(target, row)
        assert len(store.execute("SELECT id FROM t")) == 1
        store.execute("DROP TABLE t")
        store.execute(f"DROP TABLE {target.ledger_name}")


@pytest.mark.parametrize("store", STORES[1:], indirect=True)
def test_missing_schema_is_created_before_its_table(store: Store) -> None:
    """The error has the statements, and createTable runs them. A start creates the schema of the ledger."""
    schemas = [f"s_{uuid.uuid4().hex[:12]}" for _ in range(3)]
    if not isinstance(store, Maria):  # the error of MariaDB names the missing database
        absent = store.target(table=f"{schemas[0]}.t")
        with pytest.raises(SchemaMismatch, match="There is no table") as caught:
            agreed(absent)
        store.paste(caught.value.remedy.partition("\n")[2])
        bring(absent, ROW.batch)
        makes = store.target(table=f"{schemas[1]}.t", create_table=True)
        assert makes.dry_plan(SCHEMA, "key").creates.startswith("CREATE SCHEMA")
        bring(makes, ROW.batch)
    store.execute(TABLE.format(key=""))
    apart = store.target(ledger_table=f"{schemas[2]}.ledger")
    bring(apart, ROW.batch)
    assert len(store.execute(f"SELECT * FROM {schemas[2]}.ledger")) == 1


def test_table_with_another_key_is_refused(store: Store) -> None:
    """The table's key, and not option keyColumns, would decide which rows are replaced."""
    store.execute(TABLE.format(key=", PRIMARY KEY (id, name)"))
    makes: dict[str, Any] = {"mode": "upsert", "create_table": True}
    fits, other = (store.target(**makes, key_columns=key) for key in ("name,id", "id"))
    agreed(fits)
    assert fits.shape != other.shape, "the plan of the first would be used for the second"
    with pytest.raises(SchemaMismatch, match=r"names id, and .*t exists with the key id, name"):
        agreed(other)


def test_table_is_made_from_the_dataframe(store: Store) -> None:
    """A check shows the statement, and creates nothing."""
    target = store.target(
        mode="upsert",
        create_table=True,
        key_columns="id,name",
        partition_columns="id" if isinstance(store, Maria | Postgresql) else "",
    )
    schema = pa.schema(
        [
            *SCHEMA,
            ("at", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("small", pa.int8()),
            ("yes", pa.bool_()),
            ("real", pa.float32()),
            ("double", pa.float64()),
            ("bytes", pa.binary()),
            *([] if isinstance(store, Sqlite) else [("price", pa.decimal128(9, 2))]),
        ]
    )
    shown = target.dry_plan(schema, "key")
    assert "PRIMARY KEY" in shown.creates
    with pytest.raises(Exception, match=r"t'|table|relation"):  # the table does not exist
        store.execute("SELECT * FROM t")
    plan = target.plan(schema, "key")
    assert [(c.name, c.role) for c in plan.columns] == [(c.name, c.role) for c in shown.columns]
    assert target.plan(schema, "key") == plan
    cells = {name: [None] for name in schema.names} | {"id": [1], "name": ["x"], "yes": [True]}
    for _ in range(2):
        bring(target, pa.record_batch(cells, schema=schema))
    assert [tuple(row) for row in store.execute("SELECT id, name, yes FROM t")] == [(1, "x", 1)]


@pytest.mark.parametrize("store", [Sqlite, DuckDb], indirect=True)
def test_partitions_of_a_file_are_refused(store: Store) -> None:
    with pytest.raises(OptionError, match="makes no partitions in"):
        store.target(create_table=True, partition_columns="id")


def test_refusal_of_unsupported_types_proposes_casts(tmp_path: Path) -> None:
    """The casts are one chain of calls, which can be pasted."""
    columns = [("id", pa.int64()), ("cost", pa.decimal128(10, 2)), ("tags", pa.list_(pa.string()))]
    with pytest.raises(SchemaMismatch) as caught:
        agreed(Sqlite(tmp_path).target(create_table=True), pa.schema(columns))
    assert caught.value.what == (
        "SQLite has no type for cost (decimal(10,2)), tags (array<string>)."
    )
    chain = (
        '.withColumn("cost", F.col("cost").cast("string")).withColumn("tags", F.to_json("tags"))'
    )
    assert caught.value.remedy == f"Make texts of them in the DataFrame: {chain}."
