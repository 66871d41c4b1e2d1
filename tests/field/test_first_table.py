"""First tables with names, widths, keys or types that the database does not take.

The tests run each statement of a remedy, and then a start succeeds.
"""

from __future__ import annotations

import random
import re
import string
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.sql.stores import DuckDb, Maria, Postgresql, Sqlite, Store
from wal_sink.errors import OptionError, SchemaMismatch, TargetRefused
from wal_sink.targets.postgresql import PostgresqlOptions, PostgresqlTarget
from wal_sink.targets.sql.keyed_target import KeyedTarget
from wal_sink.targets.sqlalchemy import SqlAlchemyOptions, SqlAlchemyTarget
from wal_sink.testing.micro_batches import PlayedQuery

ORDERS = pa.schema([("code", pa.string()), ("price", pa.int64())])
LONG = "a_" * 40
POSTGRESQL = pytest.param(Postgresql, marks=pytest.mark.postgresql)
MARIADB = pytest.param(Maria, marks=pytest.mark.mariadb)
SERVERS = pytest.mark.parametrize("store", [POSTGRESQL, MARIADB], indirect=True)


def doubles(count: int) -> pa.Schema:
    return pa.schema([(f"d{number}", pa.float64()) for number in range(count)])


@pytest.mark.parametrize("store", [POSTGRESQL], indirect=True)
def test_row_wider_than_a_page_is_refused_at_start(store: Store) -> None:
    """A check refuses it, too. createTable leaves no table."""
    making = store.target(create_table=True)
    for start in (making.dry_plan, making.plan):
        with pytest.raises(SchemaMismatch, match=r"9,624 bytes in 1,200 columns .* takes 8,160"):
            start(doubles(1_200), "key")
    assert store.execute("SELECT to_regclass('t')")[-1] == (None,)
    columns = ", ".join(f"d{number} double precision" for number in range(1_200))
    store.execute(f"CREATE TABLE t ({columns})")
    for start in (store.target().dry_plan, store.target().plan):
        with pytest.raises(SchemaMismatch, match=r"a page.*every row without nulls"):
            start(doubles(1_200), "key")
    store.target().plan(doubles(1_017), "key")


@pytest.mark.parametrize("store", [POSTGRESQL], indirect=True)
@pytest.mark.parametrize(
    ("columns", "limit"),
    [
        (", ".join(f"c{number} text" for number in range(600)), "maximum size 8160"),
        ("c0 text PRIMARY KEY", "maximum size is 8191"),
    ],
)
def test_row_too_long_for_a_page_is_refused_alone(store: Store, columns: str, limit: str) -> None:
    """The error has the server's limit, and the other rows arrive."""
    store.execute(f"CREATE TABLE t ({columns})")
    names = [column.split()[0] for column in columns.split(", ")]
    fields = pa.schema([(name, pa.string()) for name in names])
    mode = "upsert" if "KEY" in columns else "append"
    query = PlayedQuery(store.target(mode=mode), fields)
    noise = "".join(random.Random(1).choices(string.printable, k=9_000 // len(names) + 5))
    query.run().batch([("a",) * len(names), (noise,) * len(names)])
    with pytest.raises(TargetRefused, match=f"(?s)epoch 0.*{limit}"):
        query.flush()
    query.on_invalid_row = "quarantine"
    query.flush()
    assert store.execute("SELECT c0 FROM t") == [("a",)]


@pytest.mark.parametrize("store", [POSTGRESQL], indirect=True)
def test_column_name_that_postgresql_would_cut_is_refused(store: Store) -> None:
    """Two cut names may be equal. Nothing is created."""
    fields = pa.schema([("id", pa.int64()), (f"{LONG}1", pa.int64()), (f"{LONG}2", pa.int64())])
    with pytest.raises(
        SchemaMismatch, match="longer than 63 bytes, the most that PostgreSQL takes"
    ):
        store.target(create_table=True).plan(fields, "key")
    assert store.execute("SELECT to_regclass('t')")[-1] == (None,)


def test_name_longer_than_mariadbs_is_refused(maria: Maria) -> None:
    """A start and a check refuse the name of a column or a table, and create nothing."""
    column = pa.schema([("id", pa.int64()), (LONG, pa.int64())])
    for fields, table in ((column, "t"), (ORDERS, LONG)):
        making = maria.target(create_table=True, table=table)
        for start in (making.dry_plan, making.plan):
            with pytest.raises(SchemaMismatch, match="longer than 64 characters"):
                start(fields, "key")
    assert maria.execute("SHOW TABLES") == []
    fits = pa.schema([("id", pa.int64()), ("ä" * 64, pa.int64())])
    maria.target(create_table=True).plan(fits, "key")


@pytest.mark.parametrize(
    ("fields", "options", "code", "remedy"),
    [
        ([pa.decimal128(38, 0)] * 600, {}, "1118", "Put columns together"),
        ([pa.float64()] * 1_100, {}, "1005", "Put columns together"),
        ([pa.int64()] * 4_100, {}, "1117", "Put columns together"),
        ([pa.binary()], {"mode": "upsert", "key_columns": "c0"}, "1170", "with shorter ones"),
        ([pa.int64()], {"table": "nowhere.t"}, "1049", "CREATE DATABASE"),
    ],
)
def test_error_of_table_refused_by_mariadb_has_remedy(
    maria: Maria, fields: list[pa.DataType], options: Any, code: str, remedy: str
) -> None:
    """The remedy names neither user nor password."""
    schema = pa.schema([(f"c{number}", type_) for number, type_ in enumerate(fields)])
    with pytest.raises(TargetRefused, match=code) as caught:
        maria.target(create_table=True, **options).plan(schema, "key")
    assert remedy in caught.value.remedy
    assert "SQL:" not in caught.value.what
    assert not re.search("user|password|right", caught.value.remedy)


def test_key_of_many_texts_fits_mariadbs_index(maria: Maria) -> None:
    texts = pa.schema([(f"k{number}", pa.string()) for number in range(6)])
    keys = ",".join(texts.names[:5])
    maria.target(create_table=True, key_columns=keys, mode="upsert").plan(texts, "key")


SERIAL: dict[type[Store], str] = {
    Postgresql: 'CREATE TABLE "Orders" (id serial PRIMARY KEY, code varchar(20) UNIQUE, price bigint)',
    Maria: (
        "CREATE TABLE Orders (id integer AUTO_INCREMENT PRIMARY KEY, code varchar(20) UNIQUE, price bigint)"
    ),
}


@SERVERS
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_error_of_serial_key_beside_unique_column_has_remedy(store: Store, mode: str) -> None:
    """Both modes propose the same new table."""
    store.execute(SERIAL[type(store)])
    with pytest.raises(SchemaMismatch, match="unique") as caught:
        store.target(table="Orders", mode=mode).plan(ORDERS, "key")
    pattern = r"table=([\w.]+), \w+.mode=upsert, createTable=true and keyColumns=(\w+)\."
    ((table, key),) = re.findall(pattern, caught.value.remedy)
    own = store.target(table=table, mode="upsert", create_table=True, key_columns=key)
    assert own.plan(ORDERS, "key").columns


@SERVERS
def test_error_of_missing_database_has_create_database(store: Postgresql | Maria) -> None:
    missing = f"test-{uuid.uuid4().hex[:8]}"
    if isinstance(store, Postgresql):
        uri = store.server.uri.rpartition("/")[0]
        of_missing: KeyedTarget = PostgresqlTarget(
            PostgresqlOptions(uri=f"{uri}/{missing}", table="t")
        )
    else:
        url = store.server.url(missing)
        of_missing = SqlAlchemyTarget(SqlAlchemyOptions(url=url, table="t"))
    with pytest.raises(OptionError, match=missing) as caught:
        of_missing.plan(ORDERS, "key")
    assert "CREATE DATABASE" in caught.value.remedy
    statement = f"CREATE DATABASE {of_missing.quote(missing)}"
    store.server.execute(statement)
    try:
        with pytest.raises(SchemaMismatch, match="There is no table t"):
            of_missing.plan(ORDERS, "key")
    finally:
        store.server.execute(statement.replace("CREATE", "DROP"))


@pytest.mark.parametrize(
    ("store", "type_"),
    [
        *(pytest.param(Postgresql, t, marks=POSTGRESQL.marks) for t in ("inet", "mood")),
        *(pytest.param(Maria, t, marks=MARIADB.marks) for t in ("enum('a')", "point")),
        (DuckDb, "interval"),
    ],
    indirect=["store"],
)
def test_type_without_a_cast_is_refused(store: Store, type_: str) -> None:
    if type_ == "mood":
        store.execute("CREATE TYPE mood AS ENUM ('good', 'bad')")
    store.execute(f"CREATE TABLE t (code {type_}, price bigint)")
    with pytest.raises(SchemaMismatch, match="No cast leads to that type") as caught:
        store.target().plan(ORDERS, "key")
    assert "Cast it" not in caught.value.what
    assert re.search(r"Change it to (text|longtext|varchar),", caught.value.what)


def test_suggested_alter_statement_makes_a_mariadb_table_fit(maria: Maria) -> None:
    """The statement adds the missing column."""
    maria.execute("CREATE TABLE t (code varchar(20))")
    with pytest.raises(SchemaMismatch) as caught:
        maria.target().plan(ORDERS, "key")
    (statement,) = re.findall(r"run: (ALTER .*?;)", caught.value.what)
    maria.paste(statement)
    maria.target().plan(ORDERS, "key")


def test_error_proposes_to_rename_column_of_another_case(tmp_path: Path) -> None:
    """ADD COLUMN would fail, since the database ignores the case of names."""
    store = Sqlite(tmp_path)
    store.execute("CREATE TABLE t (Code TEXT, price BIGINT)")
    with pytest.raises(SchemaMismatch) as caught:
        store.target().plan(ORDERS, "key")
    assert 'Rename it, .withColumnRenamed("code", "Code").' in caught.value.what
    assert "ADD COLUMN" not in caught.value.what
    store.target().plan(ORDERS.set(0, pa.field("Code", pa.string())), "key")
