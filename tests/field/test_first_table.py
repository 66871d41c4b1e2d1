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

from tests.sql.mariadb import MariaDb
from tests.sql.stores import DuckDb, Maria, Postgresql, Sqlite, Store
from wal_sink.demo.postgresql import Server
from wal_sink.errors import OptionError, SchemaMismatch, TargetRefused
from wal_sink.targets.base import Target
from wal_sink.targets.postgresql import PostgresqlOptions, PostgresqlTarget
from wal_sink.targets.sqlalchemy import SqlAlchemyOptions, SqlAlchemyTarget
from wal_sink.testing.micro_batches import PlayedQuery

ORDERS = pa.schema([("code", pa.string()), ("price", pa.int64())])
LONG = "a_" * 40
SERVERS = [
    pytest.param("postgresql", marks=pytest.mark.postgresql),
    pytest.param("mariadb", marks=pytest.mark.mariadb),
]


@pytest.fixture
def of_postgresql(postgresql: Server, schema: str) -> Postgresql:
    return Postgresql(postgresql, schema)


@pytest.fixture
def of_mariadb(mariadb: MariaDb, database: str) -> Maria:
    return Maria(mariadb, database)


def postgresql_target(store: Postgresql, **options: Any) -> PostgresqlTarget:
    of_table: dict[str, Any] = {"table": f"{store.schema}.t"} | options
    return PostgresqlTarget(PostgresqlOptions(uri=store.server.uri, **of_table))


def sql_target(store: Store, **options: Any) -> SqlAlchemyTarget:
    of_table: dict[str, Any] = {"table": "t"} | options
    return SqlAlchemyTarget(SqlAlchemyOptions(url=store.url, **of_table))


def target(store: Store, **options: Any) -> Target:
    if isinstance(store, Postgresql):
        return postgresql_target(store, **options)
    return sql_target(store, **options)


def doubles(count: int) -> pa.Schema:
    return pa.schema([(f"d{number}", pa.float64()) for number in range(count)])


@pytest.mark.postgresql
def test_row_wider_than_a_page_is_refused_at_start(of_postgresql: Postgresql) -> None:
    """A check refuses it, too. createTable leaves no table."""
    making = postgresql_target(of_postgresql, create_table=True)
    for start in (making.dry_plan, making.plan):
        with pytest.raises(SchemaMismatch, match=r"9,624 bytes in 1,200 columns .* takes 8,160"):
            start(doubles(1_200), "key")
    assert of_postgresql.execute("SELECT to_regclass('t')")[-1] == (None,)
    columns = ", ".join(f"d{number} double precision" for number in range(1_200))
    of_postgresql.execute(f"CREATE TABLE t ({columns})")
    for start in (postgresql_target(of_postgresql).dry_plan, postgresql_target(of_postgresql).plan):
        with pytest.raises(SchemaMismatch, match=r"a page.*every row without nulls"):
            start(doubles(1_200), "key")
    postgresql_target(of_postgresql).plan(doubles(1_017), "key")


@pytest.mark.postgresql
@pytest.mark.parametrize(
    ("columns", "limit"),
    [
        (", ".join(f"c{number} text" for number in range(600)), "maximum size 8160"),
        ("c0 text PRIMARY KEY", "maximum size is 8191"),
    ],
)
def test_row_too_long_for_a_page_is_refused_alone(
    of_postgresql: Postgresql, columns: str, limit: str
) -> None:
    """The error has the server's limit, and the other rows arrive."""
    of_postgresql.execute(f"CREATE TABLE t ({columns})")
    names = [column.split()[0] for column in columns.split(", ")]
    fields = pa.schema([(name, pa.string()) for name in names])
    mode = "upsert" if "KEY" in columns else "append"
    query = PlayedQuery(postgresql_target(of_postgresql, mode=mode), fields)
    noise = "".join(random.Random(1).choices(string.printable, k=9_000 // len(names) + 5))
    query.run().batch([("a",) * len(names), (noise,) * len(names)])
    with pytest.raises(TargetRefused, match=f"(?s)epoch 0.*{limit}"):
        query.flush()
    query.on_invalid_row = "quarantine"
    query.flush()
    assert of_postgresql.execute("SELECT c0 FROM t") == [("a",)]


@pytest.mark.postgresql
def test_name_that_postgresql_would_cut_is_refused(of_postgresql: Postgresql) -> None:
    """Two cut names may be equal. Nothing is created."""
    fields = pa.schema([("id", pa.int64()), (f"{LONG}1", pa.int64()), (f"{LONG}2", pa.int64())])
    with pytest.raises(
        SchemaMismatch, match="longer than 63 bytes, the most that PostgreSQL takes"
    ):
        postgresql_target(of_postgresql, create_table=True).plan(fields, "key")
    assert of_postgresql.execute("SELECT to_regclass('t')")[-1] == (None,)
    with pytest.raises(OptionError, match="longer than 63 bytes"):
        postgresql_target(of_postgresql, table=LONG)


@pytest.mark.mariadb
def test_name_longer_than_mariadbs_is_refused(of_mariadb: Maria) -> None:
    """A start and a check refuse the name of a column or a table, and create nothing."""
    column = pa.schema([("id", pa.int64()), (LONG, pa.int64())])
    for fields, table in ((column, "t"), (ORDERS, LONG)):
        making = sql_target(of_mariadb, create_table=True, table=table)
        for start in (making.dry_plan, making.plan):
            with pytest.raises(SchemaMismatch, match="longer than 64 characters"):
                start(fields, "key")
    assert of_mariadb.execute("SHOW TABLES") == []
    fits = pa.schema([("id", pa.int64()), ("ä" * 64, pa.int64())])
    sql_target(of_mariadb, create_table=True).plan(fits, "key")


@pytest.mark.mariadb
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
def test_table_that_mariadb_cannot_make_has_a_remedy(
    of_mariadb: Maria, fields: list[pa.DataType], options: Any, code: str, remedy: str
) -> None:
    """The remedy names neither user nor password."""
    schema = pa.schema([(f"c{number}", type_) for number, type_ in enumerate(fields)])
    with pytest.raises(TargetRefused, match=code) as caught:
        sql_target(of_mariadb, create_table=True, **options).plan(schema, "key")
    assert remedy in caught.value.remedy
    assert not re.search("user|password|right", caught.value.remedy)


@pytest.mark.mariadb
def test_key_of_many_texts_fits_mariadbs_index(of_mariadb: Maria) -> None:
    texts = pa.schema([(f"k{number}", pa.string()) for number in range(6)])
    keys = ",".join(texts.names[:5])
    sql_target(of_mariadb, create_table=True, key_columns=keys, mode="upsert").plan(texts, "key")


SERIAL = {
    "postgresql": 'CREATE TABLE "Orders" (id serial PRIMARY KEY, code varchar(20) UNIQUE, price bigint)',
    "mariadb": (
        "CREATE TABLE Orders (id integer AUTO_INCREMENT PRIMARY KEY, code varchar(20) UNIQUE, price bigint)"
    ),
}


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_serial_key_beside_a_unique_column_has_a_remedy(
    name: str, mode: str, request: pytest.FixtureRequest
) -> None:
    """Both modes propose the same new table."""
    store: Store = request.getfixturevalue(f"of_{name}")
    store.execute(SERIAL[name])
    table = f"{store.schema}.Orders" if isinstance(store, Postgresql) else "Orders"
    with pytest.raises(SchemaMismatch, match="unique") as caught:
        target(store, table=table, mode=mode).plan(ORDERS, "key")
    pattern = r"table=([\w.]+) and \w+.mode=upsert:\n(CREATE .*?;)\n(CREATE UNIQUE .*?;)\n"
    remedy = re.search(pattern, caught.value.remedy)
    assert remedy, caught.value.remedy
    table, *statements = remedy.groups()
    for statement in statements:
        store.paste(statement)
    target(store, table=table, mode="upsert").plan(ORDERS, "key")


@pytest.mark.parametrize("name", SERVERS)
def test_missing_database_comes_with_its_statement(
    name: str, request: pytest.FixtureRequest
) -> None:
    store, missing = request.getfixturevalue(f"of_{name}"), f"test-{uuid.uuid4().hex[:8]}"
    if isinstance(store, Postgresql):
        uri = store.server.uri.rpartition("/")[0]
        of_missing: Target = PostgresqlTarget(PostgresqlOptions(uri=f"{uri}/{missing}", table="t"))
    else:
        url = store.server.url(missing)
        of_missing = SqlAlchemyTarget(SqlAlchemyOptions(url=url, table="t"))
    with pytest.raises(OptionError) as caught:
        of_missing.plan(ORDERS, "key")
    (statement,) = re.findall(r"Run: (CREATE DATABASE .*?;)", caught.value.remedy)
    store.server.execute(statement)
    try:
        with pytest.raises(SchemaMismatch, match="There is no table t"):
            of_missing.plan(ORDERS, "key")
    finally:
        store.server.execute(statement.replace("CREATE", "DROP"))


@pytest.mark.parametrize(
    ("name", "type_"),
    [
        *(pytest.param("postgresql", t, marks=pytest.mark.postgresql) for t in ("inet", "mood")),
        *(pytest.param("mariadb", t, marks=pytest.mark.mariadb) for t in ("enum('a')", "point")),
        ("duckdb", "interval"),
    ],
)
def test_type_without_a_cast_is_refused_with_an_alter(
    name: str, type_: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    store: Store = DuckDb(tmp_path) if name == "duckdb" else request.getfixturevalue(f"of_{name}")
    if type_ == "mood":
        store.execute("CREATE TYPE mood AS ENUM ('good', 'bad')")
    store.execute(f"CREATE TABLE t (code {type_}, price bigint)")
    with pytest.raises(SchemaMismatch, match="No cast leads to that type") as caught:
        target(store).plan(ORDERS, "key")
    assert "Cast it" not in caught.value.what
    (statement,) = re.findall(r"Run: (ALTER .*?;)", caught.value.what)
    store.paste(statement)
    target(store).plan(ORDERS, "key")


@pytest.mark.mariadb
def test_suggested_alter_statements_make_a_mariadb_table_fit(of_mariadb: Maria) -> None:
    """The statements add a missing column, and let a column take nulls."""
    of_mariadb.execute("CREATE TABLE t (code varchar(20), `a need` integer NOT NULL)")
    with pytest.raises(SchemaMismatch) as caught:
        target(of_mariadb).plan(ORDERS, "key")
    statements = re.findall(r"run: (ALTER .*?;)", caught.value.what)
    assert len(statements) == 2
    for statement in statements:
        of_mariadb.paste(statement)
    target(of_mariadb).plan(ORDERS, "key")


def test_column_of_another_case_is_renamed(tmp_path: Path) -> None:
    """ADD COLUMN would fail, since the database ignores the case of names."""
    store = Sqlite(tmp_path)
    store.execute("CREATE TABLE t (Code TEXT, price BIGINT)")
    with pytest.raises(SchemaMismatch) as caught:
        sql_target(store).plan(ORDERS, "key")
    assert 'Rename it, .withColumnRenamed("code", "Code").' in caught.value.what
    assert "ADD COLUMN" not in caught.value.what
    sql_target(store).plan(ORDERS.set(0, pa.field("Code", pa.string())), "key")
