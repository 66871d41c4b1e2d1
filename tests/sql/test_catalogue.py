"""Tables that a start compares with the DataFrame: columns, types, keys and views, in each SQL database."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from tests.sql.mariadb import MySql
from tests.sql.stores import (
    ROW,
    SCHEMA,
    TABLE,
    DuckDb,
    Maria,
    Postgresql,
    Sqlite,
    Store,
    agreed,
    bring,
    new_query,
)
from wal_sink.errors import SchemaMismatch
from wal_sink.testing.contracts.rows import deliver


def test_dataframe_with_a_computed_column_is_refused(store: Store) -> None:
    """A DataFrame without that column is accepted, and its rows arrive."""
    end = " STORED" if isinstance(store, Postgresql) else ""
    computed = f"twice BIGINT GENERATED ALWAYS AS (id * 2){end}"
    store.execute(f"CREATE TABLE t (id BIGINT, name TEXT, {computed})")
    with pytest.raises(SchemaMismatch, match="twice: the server computes this column"):
        agreed(store.target(), SCHEMA.append(pa.field("twice", pa.int64())))
    bring(store.target(), ROW.batch)
    assert store.execute("SELECT twice FROM t") == [(2,)]


@pytest.mark.parametrize("store", [Sqlite, DuckDb], indirect=True)
@pytest.mark.parametrize("create_table", [False, True])
def test_table_name_of_another_case_is_suggested(store: Store, *, create_table: bool) -> None:
    """The database takes both names for one: createTable could not create the table."""
    store.execute(TABLE.format(key="").replace(" t ", " T "))
    with pytest.raises(SchemaMismatch, match=r"no table t\. There is T, which differs"):
        agreed(store.target(create_table=create_table))


def test_columns_differing_by_case_are_refused_except_by_postgresql(store: Store) -> None:
    twice = SCHEMA.append(pa.field("Name", pa.string()))
    target = store.target(create_table=True)
    for start in (target.dry_plan, target.plan):
        if isinstance(store, Postgresql):
            assert start(twice, "key").columns
            continue
        with pytest.raises(SchemaMismatch, match="columns name, Name differ by case only"):
            start(twice, "key")


def test_view_is_refused(store: Store) -> None:
    """A start refuses the view. A session refuses it if the view has replaced the table."""
    store.execute(TABLE.format(key=""))
    target = store.target()
    plan = agreed(target)
    with new_query(target) as session:
        store.paste("ALTER TABLE t RENAME TO u")
        store.paste("CREATE VIEW t AS SELECT * FROM u")
        with pytest.raises(SchemaMismatch, match=r"t is a view"):
            deliver(session, plan, ROW)
    with pytest.raises(SchemaMismatch, match=r"t is a view"):
        agreed(target)


def test_error_names_a_type_unknown_to_sqlalchemy(maria: Maria) -> None:
    """The error comes only if the DataFrame has the column."""
    type_ = "vector(3)" if isinstance(maria.server, MySql) else "point"
    maria.execute(f"CREATE TABLE t (id BIGINT, name TEXT, other {type_})")
    agreed(maria.target())
    with pytest.raises(SchemaMismatch, match=f"table's type is {type_[:5]}.*No cast leads"):
        agreed(maria.target(), SCHEMA.append(pa.field("other", pa.string())))


@pytest.mark.parametrize(
    ("key", "mode", "words"),
    [
        (", PRIMARY KEY (id)", "append", "is unique by "),
        ("", "upsert", "no primary key"),
        (", PRIMARY KEY (id), UNIQUE (name)", "upsert", "more than one unique index"),
    ],
)
def test_key_unfit_for_the_mode_is_refused(store: Store, key: str, mode: str, words: str) -> None:
    store.execute(TABLE.format(key=key))
    with pytest.raises(SchemaMismatch, match=words):
        agreed(store.target(mode=mode))


def test_constraint_on_the_columns_of_the_key_is_accepted(tmp_path: Path) -> None:
    """SQLite cannot drop a constraint."""
    store = Sqlite(tmp_path)
    store.execute(TABLE.format(key=", PRIMARY KEY (id), UNIQUE (id)"))
    store.execute("CREATE UNIQUE INDEX u ON t (id)")
    bring(store.target(mode="upsert"), ROW.batch, ROW.batch)
    assert store.execute("SELECT * FROM t") == [(1, "x")]


def test_remedy_of_unnamed_unique_constraints_works(store: Store) -> None:
    store.execute(TABLE.format(key=", UNIQUE (id), UNIQUE (name)"))
    with pytest.raises(SchemaMismatch, match="is unique by") as caught:
        agreed(store.target())
    assert "None" not in str(caught.value)
    key, rows = re.findall(r"keyColumns=(id|name)\.", caught.value.remedy), "t_rows"
    own = store.target(table=rows, mode="upsert", create_table=True, key_columns=key[0])
    bring(own, ROW.batch, ROW.batch)
    assert [tuple(row) for row in store.execute("SELECT * FROM t_rows")] == [(1, "x")]


@pytest.mark.parametrize(
    ("store", "index"),
    [
        (Sqlite, "t (name) WHERE id > 0"),
        (DuckDb, "t (lower(name))"),
        (DuckDb, "t (id, lower(name))"),
        pytest.param(Maria, "t (name(3))", marks=pytest.mark.mariadb),
    ],
    indirect=["store"],
)
def test_partial_unique_index_is_not_a_key(store: Store, index: str) -> None:
    """The index is on a part of a column, on an expression, or on some rows.

    Beside a primary key such an index may refuse a row, so a start refuses the table.
    """
    for key, words in (("", "no primary key"), (", PRIMARY KEY (id)", "part .*expression")):
        store.execute(TABLE.format(key=key))
        store.execute(f"CREATE UNIQUE INDEX part ON {index}")
        with pytest.raises(SchemaMismatch, match=words):
            agreed(store.target(mode="upsert"))
        store.execute("DROP TABLE t")


def test_key_outside_the_dataframe_is_filled_by_sqlite(tmp_path: Path) -> None:
    """SQLite uses the next row id. A start refuses a table without row ids."""
    store, schema = Sqlite(tmp_path), pa.schema([("name", pa.string())])
    store.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)")
    bring(store.target(), pa.record_batch([["a", "a"]], schema))
    assert store.execute("SELECT * FROM t") == [(1, "a"), (2, "a")]
    store.execute("DROP TABLE t")
    store.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT) WITHOUT ROWID")
    with pytest.raises(SchemaMismatch, match="takes no null"):
        agreed(store.target(), schema)


@pytest.mark.parametrize(
    ("store", "change", "words"),
    [
        (DuckDb, "CREATE UNIQUE INDEX u ON t (name)", r"u \(name\) now"),
        pytest.param(
            Maria,
            "ALTER TABLE t DROP PRIMARY KEY",
            "no unique index now",
            marks=pytest.mark.mariadb,
        ),
    ],
    indirect=["store"],
)
def test_key_changed_under_a_session_stops_the_flush(store: Store, change: str, words: str) -> None:
    """MariaDB would replace rows by any unique index, or add them twice without one."""
    store.execute(TABLE.format(key=", PRIMARY KEY (id)"))
    target = store.target(mode="upsert")
    plan = agreed(target)
    with new_query(target) as session:
        store.execute(change)
        with pytest.raises(SchemaMismatch, match=f"its key was id, .*{words}"):
            deliver(session, plan, ROW)
    assert store.execute("SELECT * FROM t") == []


def test_table_with_only_key_columns_takes_upserts(store: Store) -> None:
    store.execute(TABLE.format(key=", PRIMARY KEY (name, id)"))
    bring(store.target(mode="upsert"), pa.record_batch([[1, 1, 2], ["a", "a", "a"]], SCHEMA))
    assert [*map(tuple, store.execute("SELECT * FROM t ORDER BY id"))] == [(1, "a"), (2, "a")]


def test_zero_stays_zero_under_auto_increment(maria: Maria) -> None:
    """By default MariaDB would replace the zero by the next number."""
    maria.execute("CREATE TABLE t (id BIGINT AUTO_INCREMENT PRIMARY KEY, name TEXT)")
    bring(maria.target(mode="upsert"), pa.record_batch([[0, 0], ["a", "b"]], SCHEMA))
    assert maria.execute("SELECT id, name FROM t") == [(0, "b")]


def test_duckdb_decides_which_keys_are_equal(tmp_path: Path) -> None:
    """The key has a uuid, which has no case, and a text whose collation ignores case."""
    store = DuckDb(tmp_path)
    store.execute(
        "CREATE TABLE t (id UUID, name VARCHAR COLLATE NOCASE, v INT, PRIMARY KEY (id, name))"
    )
    schema = pa.schema(
        [("id", pa.string()), ("name", pa.string()), ("v", pa.int32()), ("op", pa.string())]
    )
    small = "abcdefab-0000-0000-0000-000000000000"
    large = small.upper()
    keys = [(small, "a"), (large, "A"), (small, "gone"), (large, "GONE")] * 50
    rows = [(*key, v, "upsert") for v, key in enumerate(keys)] + [(large, "Gone", None, "delete")]
    target = store.target(mode="upsert", operation_column="op")
    bring(target, pa.record_batch([*zip(*rows, strict=True)], schema))
    assert store.execute("SELECT v FROM t") == [(197,)]
