"""What the target `sql` reads of a table at the start: columns, types, keys and views."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from tests.sql.mariadb import MariaDb, MySql
from tests.sql.stores import (
    SCHEMA,
    TABLE,
    DuckDb,
    Maria,
    Sqlite,
    Store,
    agreed,
    bring,
    sql_target,
)
from wal_sink.errors import SchemaMismatch
from wal_sink.targets.base import RowSlice
from wal_sink.testing.contracts.ledger import create
from wal_sink.testing.contracts.rows import deliver

FILES = pytest.mark.parametrize("store", [Sqlite, DuckDb], indirect=True)


def test_misfits_of_a_table_are_in_one_error(tmp_path: Path) -> None:
    """Names, types and what the table requires, each with what to do."""
    store = Sqlite(tmp_path)
    store.execute("CREATE TABLE t (id BIGINT, at DATETIME, price DECIMAL(9,2), need TEXT NOT NULL)")
    columns = [("Id", pa.int64()), ("at", pa.int64()), ("price", pa.decimal128(9, 2))]
    with pytest.raises(SchemaMismatch) as caught:
        agreed(sql_target(store), pa.schema(columns))
    for words in (
        "Id: the table has no such column. There is id, which differs",
        "at: the table's type is datetime",
        'cast("timestamp_ntz")',
        "price: the table's type is decimal(9,2), which cannot be written",
        "need: it takes no null, has no default, and is not in the DataFrame",
    ):
        assert words in str(caught.value)


def test_computed_column_takes_no_value(store: Store) -> None:
    """The flush would stop; the others arrive without it."""
    store.execute("CREATE TABLE t (id BIGINT, name TEXT, twice BIGINT AS (id * 2))")
    with pytest.raises(SchemaMismatch, match="twice: the server computes this column"):
        agreed(sql_target(store), SCHEMA.append(pa.field("twice", pa.int64())))
    bring(sql_target(store), pa.record_batch([[1], ["x"]], SCHEMA))
    assert store.execute("SELECT twice FROM t") == [(2,)]


@FILES
@pytest.mark.parametrize("create_table", [False, True])
def test_table_name_of_another_case_is_suggested(store: Store, *, create_table: bool) -> None:
    """Both are one name in a file: createTable cannot create the table."""
    store.execute(TABLE.format(key="").replace(" t ", " T "))
    with pytest.raises(SchemaMismatch, match=r"no table t\. There is T, which differs"):
        agreed(sql_target(store, create_table=create_table))


def test_columns_that_differ_by_case_are_named(store: Store) -> None:
    """Each of these databases takes them for one column."""
    twice = SCHEMA.append(pa.field("Name", pa.string()))
    target = sql_target(store, create_table=True)
    for start in (target.dry_plan, target.plan):
        with pytest.raises(SchemaMismatch, match="columns name and Name of the DataFrame differ"):
            start(twice, "key")


def test_view_is_refused(store: Store) -> None:
    """At the start, and in a table's place under a session: it may show tables without transactions."""
    store.execute(TABLE.format(key=""))
    target = sql_target(store)
    plan = agreed(target)
    with target.connect("query") as session:
        create(session, "query")
        store.paste("ALTER TABLE t RENAME TO u")
        store.paste("CREATE VIEW t AS SELECT * FROM u")
        with pytest.raises(SchemaMismatch, match=r"t is a view\."):
            deliver(session, plan, RowSlice(0, pa.record_batch([[1], ["x"]], SCHEMA), 0))
    with pytest.raises(SchemaMismatch, match=r"t is a view\."):
        agreed(target)


def test_column_of_another_character_set_is_refused(mariadb: MariaDb, database: str) -> None:
    """A row with a character that it lacks would stop the flush."""
    mariadb.execute(
        "CREATE TABLE t (id BIGINT, name VARCHAR(20) CHARACTER SET latin1)", database=database
    )
    target = sql_target(Maria(mariadb, database))
    with pytest.raises(SchemaMismatch, match=r"varchar\(20\) of character set latin1") as caught:
        agreed(target)
    (statement,) = re.findall(r"Run: (ALTER .*?;)", caught.value.what)
    mariadb.execute(statement, database=database)
    agreed(target)


def test_type_unknown_to_sqlalchemy_is_named(mariadb: MariaDb, database: str) -> None:
    """A column of it stands beside others, and is named where the DataFrame has it."""
    store = Maria(mariadb, database)
    type_ = "vector(3)" if isinstance(mariadb, MySql) else "point"
    store.execute(f"CREATE TABLE t (id BIGINT, name TEXT, other {type_})")
    agreed(sql_target(store))
    with pytest.raises(SchemaMismatch, match=f"table's type is {type_[:5]}.*No cast leads"):
        agreed(sql_target(store), SCHEMA.append(pa.field("other", pa.string())))


@pytest.mark.parametrize(
    ("key", "mode", "words"),
    [
        (", PRIMARY KEY (id)", "append", "unique by the primary key"),
        ("", "upsert", "no primary key"),
        (", PRIMARY KEY (id), UNIQUE (name)", "upsert", "more than one unique index"),
    ],
)
@FILES
def test_key_unfit_for_the_mode_is_refused(store: Store, key: str, mode: str, words: str) -> None:
    """A row that it refuses would stop the flush."""
    store.execute(TABLE.format(key=key))
    with pytest.raises(SchemaMismatch, match=words):
        agreed(sql_target(store, mode=mode))


PARTS: dict[str, list[type[Store]]] = {
    "UNIQUE INDEX part ON t (name) WHERE id > 0": [Sqlite],
    "UNIQUE INDEX part ON t (lower(name))": [DuckDb],
    "UNIQUE INDEX part ON t (id, lower(name))": [DuckDb],
    "UNIQUE INDEX part ON t (name(3))": [Maria],
}


"""Indexes that say nothing of whole columns in all rows, by the databases that have them."""


def test_index_on_a_part_is_no_key(store: Store) -> None:
    """A delete by its columns would take other rows along; beside a key it may refuse a row."""
    for index in (index for index, kinds in PARTS.items() if type(store) in kinds):
        for key, words in (("", "no primary key"), (", PRIMARY KEY (id)", "part .*expression")):
            store.execute(TABLE.format(key=key))
            store.execute(f"CREATE {index}")
            with pytest.raises(SchemaMismatch, match=words):
                agreed(sql_target(store, mode="upsert"))
            store.execute("DROP TABLE t")


def test_key_that_the_dataframe_lacks_refuses_no_row(tmp_path: Path) -> None:
    """SQLite counts the rows; without row ids it does not."""
    store, schema = Sqlite(tmp_path), pa.schema([("name", pa.string())])
    store.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)")
    bring(sql_target(store), pa.record_batch([["a", "a"]], schema))
    assert store.execute("SELECT * FROM t") == [(1, "a"), (2, "a")]
    store.execute("DROP TABLE t")
    store.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT) WITHOUT ROWID")
    with pytest.raises(SchemaMismatch, match="takes no null"):
        agreed(sql_target(store), schema)


@pytest.mark.parametrize("store", [DuckDb, Maria], indirect=True)
def test_key_changed_under_a_session_stops_the_flush(store: Store) -> None:
    """MariaDB would take any unique index for the key, or add a row a second time without one."""
    if isinstance(store, Maria):
        changes = {
            "ALTER TABLE t DROP PRIMARY KEY": "no unique index now",
            "ALTER TABLE t ADD PRIMARY KEY (name)": r"by the primary key \(name\) now",
            "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id), ADD UNIQUE u (name)": r"u \(name\) now",
        }
    else:
        changes = {"CREATE UNIQUE INDEX u ON t (name)": r"u \(name\) now"}
    store.execute(TABLE.format(key=", PRIMARY KEY (id)"))
    target = sql_target(store, mode="upsert")
    plan = agreed(target)
    for change, words in changes.items():
        store.execute(change)
        with target.connect(change[-20:]) as session:
            create(session, change[-20:])
            with pytest.raises(SchemaMismatch, match=f"its key was id, .*{words}"):
                deliver(session, plan, RowSlice(0, pa.record_batch([[1], ["x"]], SCHEMA), 0))
    assert store.execute("SELECT * FROM t") == []


def test_zero_stays_zero_under_auto_increment(mariadb: MariaDb, database: str) -> None:
    """MariaDB would make the next number of it, a new row each time."""
    store = Maria(mariadb, database)
    store.execute("CREATE TABLE t (id BIGINT AUTO_INCREMENT PRIMARY KEY, name TEXT)")
    bring(sql_target(store, mode="upsert"), pa.record_batch([[0, 0], ["a", "b"]], SCHEMA))
    assert store.execute("SELECT id, name FROM t") == [(0, "b")]


def test_duckdb_decides_which_keys_are_equal(tmp_path: Path) -> None:
    """By collation and type of the table: of two rows of a key the last one stays, and a delete finds it."""
    store = DuckDb(tmp_path)
    store.execute(
        "CREATE TABLE t (id UUID, name VARCHAR COLLATE NOCASE, v INT, PRIMARY KEY (id, name))"
    )
    target = sql_target(store, mode="upsert", operation_column="op")
    schema = pa.schema(
        [("id", pa.string()), ("name", pa.string()), ("v", pa.int32()), ("op", pa.string())]
    )
    small = "abcdefab-0000-0000-0000-000000000000"
    keys = [(small, "a"), (small.upper(), "A"), (small, "gone"), (small.upper(), "GONE")] * 50
    rows = [(*key, v, "upsert") for v, key in enumerate(keys)] + [
        (small.upper(), "Gone", None, "delete")
    ]
    bring(target, pa.record_batch([*zip(*rows, strict=True)], schema))
    assert store.execute("SELECT v FROM t") == [(197,)]
