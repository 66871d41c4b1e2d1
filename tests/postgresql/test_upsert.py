"""Upserts and deletes by row in PostgreSQL: keys, temporary tables, and tables that a start refuses."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.sql.stores import Postgresql, agreed, bring, new_query
from wal_sink.errors import InvalidRow, OptionError, SchemaMismatch, TargetRefused
from wal_sink.targets.base import RowSlice
from wal_sink.targets.sql.keyed_target import KeyedTarget
from wal_sink.testing.contracts.rows import deliver

SCHEMA = pa.schema([("id", pa.int64()), ("op", pa.string()), ("v", pa.string())])


def rows(*changes: tuple[int | None, str, str | None]) -> pa.RecordBatch:
    columns = zip(*changes, strict=True)
    arrays = [pa.array(c, field.type) for c, field in zip(columns, SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=SCHEMA)


def deleting(store: Postgresql, **options: str) -> KeyedTarget:
    return store.target(mode="upsert", operation_column="op", **options)


@pytest.mark.parametrize("apart", [True, False], ids=["two batches", "one batch"])
def test_row_after_its_delete_keeps_no_old_value(store: Postgresql, *, apart: bool) -> None:
    """Columns that the DataFrame lacks get their defaults after a delete."""
    store.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text, w int DEFAULT 7)")
    store.execute("INSERT INTO t VALUES (1, 'old', 1), (2, 'old', 2), (3, 'old', 3)")
    deletes = [(1, "delete", None), (3, "delete", None)]
    upserts = [(1, "upsert", "a"), (2, "upsert", "b")]
    batches = [rows(*deletes), rows(*upserts)] if apart else [rows(*deletes, *upserts)]
    bring(deleting(store), *batches)
    assert store.execute("SELECT id, v, w FROM t ORDER BY id") == [(1, "a", 7), (2, "b", 2)]


def test_delete_needs_only_the_key(store: Postgresql) -> None:
    """The other cells of a delete may be null where the column refuses nulls, and may be too long."""
    store.execute(
        "CREATE DOMAIN word AS text NOT NULL;"
        " CREATE TABLE t (id bigint PRIMARY KEY, v word, w varchar(2) NOT NULL)"
    )
    changes = rows((1, "upsert", "a"), (2, "upsert", "b"), (1, "delete", None))
    batch = changes.append_column("w", pa.array(["x", "y", "far too long"]))
    target = deleting(store)
    bring(target, batch)
    assert store.execute("SELECT id, v, w FROM t") == [(2, "b", "y")]
    plan = agreed(target, batch.schema)
    with pytest.raises(InvalidRow, match="takes no null"):
        target.check(batch.take([0]).set_column(2, "v", pa.nulls(1, pa.string())), plan)


def test_collation_of_the_table_decides_equal_keys(store: Postgresql) -> None:
    """The collation ignores case. The key's other column is cast by the server."""
    store.execute(
        "CREATE COLLATION nocase"
        " (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
        " CREATE TABLE t (k text COLLATE nocase, u uuid[], v int, PRIMARY KEY (k, u))"
    )
    ids = [["123e4567-e89b-12d3-a456-426614174000"]] * 5
    keys = ["a", "b", "A", "c", "C"]
    words = ["upsert", "upsert", "delete", "upsert", "upsert"]
    bring(deleting(store), pa.record_batch({"k": keys, "u": ids, "v": [*range(5)], "op": words}))
    assert store.execute("SELECT k, v FROM t ORDER BY k") == [("b", 1), ("C", 4)]


@pytest.mark.parametrize(
    ("ddl", "words"),
    [
        (
            "CREATE TABLE t (id bigint, v text); CREATE UNIQUE INDEX ON t (id) WHERE v = ''",
            "has no primary key",
        ),
        ("CREATE TABLE t (id bigint PRIMARY KEY DEFERRABLE, v text)", "has no primary key"),
        ("CREATE TABLE t (o int DEFAULT 1 PRIMARY KEY, id bigint, v text)", "not in the DataFrame"),
        ("CREATE TABLE t (id bigint PRIMARY KEY, v text, op text)", "op, which is a column of"),
    ],
)
def test_table_unfit_for_upserts_is_refused(store: Postgresql, ddl: str, words: str) -> None:
    store.execute(ddl)
    with pytest.raises(SchemaMismatch, match=words) as caught:
        deleting(store).plan(SCHEMA, "key")
    assert caught.value.remedy


def test_deletes_in_append_mode_are_refused(store: Postgresql) -> None:
    with pytest.raises(OptionError, match="without a key") as caught:
        store.target(operation_column="op")
    assert "postgresql.mode to upsert" in caught.value.remedy


def test_session_makes_its_temporary_table_once(store: Postgresql) -> None:
    """The windows of a session share the table, and each window empties it."""
    store.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
    target = store.target(mode="upsert")
    plan = agreed(target, SCHEMA.remove(1))
    with new_query(target) as session:
        for number in range(5):
            batch = rows((number, "upsert", "a")).drop_columns("op")
            deliver(session, plan, RowSlice(0, target.check(batch, plan), 0))
        tables = store.execute("SELECT relname FROM pg_class WHERE relname LIKE 'wal_sink %'")
        assert len(tables) == 1
    assert store.execute("SELECT count(*) FROM t") == [(5,)]


def test_user_without_delete_privilege_is_refused(store: Postgresql, user: str) -> None:
    """Only a start with operationColumn refuses the user."""
    store.execute(
        f"CREATE TABLE t (id bigint PRIMARY KEY, v text);"
        f" GRANT USAGE, CREATE ON SCHEMA {store.schema} TO {user};"
        f" GRANT SELECT, INSERT, UPDATE ON t TO {user}"
    )
    uri = store.server.uri_of(user, "p")
    store.target(uri=uri, mode="upsert").plan(SCHEMA.remove(1), "key")
    with pytest.raises(TargetRefused, match="permission denied for table t"):
        deleting(store, uri=uri).plan(SCHEMA, "key")


def test_row_hidden_by_a_later_policy_stops_the_flush(store: Postgresql, user: str) -> None:
    """A delete would not find the row, and report no error."""
    store.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a');"
        f" CREATE POLICY hide ON t USING (id > 1); GRANT ALL ON t TO {user};"
        f" GRANT USAGE, CREATE ON SCHEMA {store.schema} TO {user}"
    )
    target, batch = deleting(store, uri=store.server.uri_of(user, "p")), rows((1, "delete", None))
    plan = agreed(target, SCHEMA)
    with new_query(target) as session:
        store.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
        with pytest.raises(SchemaMismatch, match=r"(?s)row-level security.*BYPASSRLS"):
            deliver(session, plan, RowSlice(0, target.check(batch, plan), 0))


def test_unavailable_cells_of_any_type_keep_their_values(store: Postgresql) -> None:
    """Some types refuse the text of an unavailable cell, and some columns refuse nulls."""
    zeros = "00000000-0000-0000-0000-00000000000"
    columns = {
        "b": ("bytea", b"one", b"two"),
        "j": ("jsonb", '{"a": 1}', '{"a": 2}'),
        "u": ("uuid", f"{zeros}1", f"{zeros}2"),
        "w": ("varchar(3)", "one", "two"),
    }
    listed = ", ".join(f"{name} {type_} NOT NULL" for name, (type_, _, _) in columns.items())
    store.execute(f"CREATE TABLE t (id int PRIMARY KEY, {listed})")
    target = store.target(mode="upsert", unavailable_value="?")

    def row(id_: int, number: int, kept: str = "") -> dict[str, object]:
        values = {name: values[number] for name, values in columns.items()}
        if kept:
            values[kept] = b"?" if kept == "b" else "?"
        return {"id": id_, **values}

    types = [pa.binary() if name == "b" else pa.string() for name in columns]
    fields = pa.schema([("id", pa.int32()), *zip(columns, types, strict=True)])
    changes = [row(i, 2, name) for i, name in enumerate(columns)]
    for records in ([row(i, 1) for i in range(4)], changes):
        bring(target, pa.RecordBatch.from_pylist(records, fields))
    texts = ", ".join(
        f"convert_from({name}, 'UTF8')" if name == "b" else f"{name}::text" for name in columns
    )
    for i, name in enumerate(columns):
        (stored,) = store.execute(f"SELECT {texts} FROM t WHERE id = {i}")
        expected = [values[1 if other == name else 2] for other, values in columns.items()]
        assert [*stored] == [v.decode() if isinstance(v, bytes) else v for v in expected]
