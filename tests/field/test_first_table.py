"""What people meet with their first table: names, widths, keys and types that the database does not take.

Each remedy that is a statement is run, and the next start passes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.sql.mariadb import MariaDb
from tests.sql.stores import Maria, Postgresql, Sqlite, Store
from wal_sink.demo.servers.postgresql import Server
from wal_sink.errors import InvalidRow, OptionError, SchemaMismatch, TargetRefused
from wal_sink.targets.postgresql import PostgresqlOptions, PostgresqlTarget
from wal_sink.targets.sqlalchemy import SqlAlchemyOptions, SqlAlchemyTarget

ORDERS = pa.schema([("code", pa.string()), ("price", pa.int64())])
LONG = "a_" * 40


@pytest.fixture
def of_postgresql(postgresql: Server, schema: str) -> Postgresql:
    return Postgresql(postgresql, schema)


@pytest.fixture
def of_mariadb(mariadb: MariaDb, database: str) -> Maria:
    return Maria(mariadb, database)


def postgresql_target(store: Postgresql, **options: Any) -> PostgresqlTarget:
    given: dict[str, Any] = {"table": f"{store.schema}.t"} | options
    return PostgresqlTarget(PostgresqlOptions(uri=store.server.uri, **given))


def sql_target(store: Store, **options: Any) -> SqlAlchemyTarget:
    given: dict[str, Any] = {"table": "t"} | options
    return SqlAlchemyTarget(SqlAlchemyOptions(url=store.url, **given))


def doubles(count: int) -> pa.Schema:
    return pa.schema([(f"d{number}", pa.float64()) for number in range(count)])


@pytest.mark.postgresql
@pytest.mark.parametrize("make", [postgresql_target, sql_target])
def test_row_wider_than_a_page_is_refused_at_start(of_postgresql: Postgresql, make: Any) -> None:
    """A table that createTable would make is not left behind."""
    with pytest.raises(SchemaMismatch, match=r"9,624 bytes in 1,200 columns .* takes 8,160"):
        make(of_postgresql, create_table=True).plan(doubles(1_200), "key")
    found = of_postgresql.execute("SELECT to_regclass('t')")
    assert found[-1] == (None,)
    columns = ", ".join(f"d{number} double precision" for number in range(1_200))
    of_postgresql.execute(f"CREATE TABLE t ({columns})")
    with pytest.raises(SchemaMismatch, match=r"a page.*every row without nulls"):
        make(of_postgresql).plan(doubles(1_200), "key")


@pytest.mark.postgresql
def test_row_of_many_texts_is_refused_by_the_task(of_postgresql: Postgresql) -> None:
    names = [f"c{number}" for number in range(600)]
    of_postgresql.execute(f"CREATE TABLE t ({', '.join(f'{name} text' for name in names)})")
    target, fields = postgresql_target(of_postgresql), pa.schema([(n, pa.string()) for n in names])
    plan = target.plan(fields, "key")
    for text, fits in (("x" * 10, True), ("x" * 20, False)):
        batch = pa.record_batch([[text]] * len(names), schema=fields)
        if fits:
            target.check(batch, plan)
        else:
            with pytest.raises(InvalidRow, match=r"8,160 bytes .* has 10,824 at least"):
                target.check(batch, plan)


@pytest.mark.postgresql
def test_name_that_postgresql_would_cut_is_refused(of_postgresql: Postgresql) -> None:
    """Two of them may be the same after the cut; nothing is created."""
    fields = pa.schema([("id", pa.int64()), (f"{LONG}1", pa.int64()), (f"{LONG}2", pa.int64())])
    for make in (postgresql_target, sql_target):
        with pytest.raises(SchemaMismatch, match="longer than 63 bytes") as caught:
            make(of_postgresql, create_table=True).plan(fields, "key")
        assert of_postgresql.execute("SELECT to_regclass('t')")[-1] == (None,)
        shorter = re.findall(r'Renamed\("\w+", "(\w+)"\)', caught.value.what)
        assert len({*shorter}) == 2
    renamed = pa.schema([("id", pa.int64()), *((name, pa.int64()) for name in shorter)])
    postgresql_target(of_postgresql, create_table=True).plan(renamed, "key")
    with pytest.raises(OptionError, match="longer than 63 bytes"):
        postgresql_target(of_postgresql, table=LONG)


@pytest.mark.mariadb
def test_name_longer_than_mariadbs_is_refused(of_mariadb: Maria) -> None:
    fields = pa.schema([("id", pa.int64()), (LONG, pa.int64())])
    with pytest.raises(SchemaMismatch, match="longer than 64 characters"):
        sql_target(of_mariadb, create_table=True).plan(fields, "key")
    assert of_mariadb.execute("SHOW TABLES") == []


@pytest.mark.mariadb
def test_mariadb_says_what_is_wrong_with_a_new_table(of_mariadb: Maria) -> None:
    """It is no matter of user and password; and a key of many texts is made so short that it fits."""
    texts = pa.schema([(f"k{number}", pa.string()) for number in range(10)])
    numbers = pa.schema([(f"n{number}", pa.decimal128(38, 0)) for number in range(600)])
    for fields, code in ((numbers, "1118"), (doubles(1_100), "1005")):
        with pytest.raises(TargetRefused, match=code) as caught:
            sql_target(of_mariadb, create_table=True).plan(fields, "key")
        assert "Put columns together" in caught.value.remedy
        assert "password" not in caught.value.remedy
    keys = ",".join(texts.names[:5])
    made = sql_target(of_mariadb, create_table=True, key_columns=keys, mode="upsert")
    made.plan(pa.schema([texts.field(number) for number in range(6)]), "key")
    nowhere = SqlAlchemyOptions(url=of_mariadb.server.url("nowhere"), table="t")
    with pytest.raises(OptionError, match="1049") as of_database:
        SqlAlchemyTarget(nowhere).plan(ORDERS, "key")
    assert "CREATE DATABASE" in of_database.value.remedy


SERIAL = {
    "postgresql": "CREATE TABLE t (id serial PRIMARY KEY, code varchar(20) UNIQUE, price bigint)",
    "mariadb": (
        "CREATE TABLE t (id integer AUTO_INCREMENT PRIMARY KEY, code varchar(20) UNIQUE, price bigint)"
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("postgresql", marks=pytest.mark.postgresql),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ],
)
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_serial_key_beside_a_unique_column_has_a_remedy(
    name: str, mode: str, request: pytest.FixtureRequest
) -> None:
    """Append says what works, and upsert the same."""
    store: Store = request.getfixturevalue(f"of_{name}")
    store.execute(SERIAL[name])
    with pytest.raises(SchemaMismatch, match="unique") as caught:
        sql_target(store, mode=mode).plan(ORDERS, "key")
    found = re.search(
        r"table=(\w+) and mode upsert: (CREATE .*?;) (ALTER .*?;)", caught.value.remedy
    )
    assert found, caught.value.remedy
    for statement in found.groups()[1:]:
        store.paste(statement)
    sql_target(store, table=found[1], mode="upsert").plan(ORDERS, "key")


@pytest.mark.postgresql
@pytest.mark.parametrize("type_", ["inet", "point", "mood"])
def test_type_without_a_cast_becomes_text(of_postgresql: Postgresql, type_: str) -> None:
    of_postgresql.execute("CREATE TYPE mood AS ENUM ('good', 'bad')")
    of_postgresql.execute(f"CREATE TABLE t (code {type_}, price bigint)")
    with pytest.raises(SchemaMismatch, match="No cast leads to that type") as caught:
        postgresql_target(of_postgresql).plan(ORDERS, "key")
    assert "Cast it" not in caught.value.what
    (statement,) = re.findall(r"Run: (ALTER .*?;)", caught.value.what)
    of_postgresql.execute(statement)
    postgresql_target(of_postgresql).plan(ORDERS, "key")


def test_column_of_another_case_is_renamed(tmp_path: Path) -> None:
    """ADD COLUMN would fail: the database takes both names for one."""
    store = Sqlite(tmp_path)
    store.execute("CREATE TABLE t (Code TEXT, price BIGINT)")
    with pytest.raises(SchemaMismatch) as caught:
        sql_target(store).plan(ORDERS, "key")
    assert 'Rename it, .withColumnRenamed("code", "Code").' in caught.value.what
    assert "ADD COLUMN" not in caught.value.what
    sql_target(store).plan(ORDERS.set(0, pa.field("Code", pa.string())), "key")
