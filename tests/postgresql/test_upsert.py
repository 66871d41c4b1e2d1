"""Upserts: the row of a key is replaced, and the last one of an epoch wins."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.postgresql.delivery import bring, bring_over, new_query, target_of
from wal_sink.demo.servers.postgresql import Server
from wal_sink.errors import SchemaMismatch


def rows(*pairs: tuple[int | None, str | None]) -> pa.RecordBatch:
    ids, values = zip(*pairs, strict=True)
    return pa.record_batch(
        [pa.array(ids, pa.int64()), pa.array(values, pa.string())], names=["id", "v"]
    )


def test_keys_are_equal_when_the_table_says_so(postgresql: Server, schema: str) -> None:
    """By a collation that ignores case: two keys of a batch that differ in Arrow are one row."""
    postgresql.execute(
        f"CREATE COLLATION {schema}.nocase"
        " (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
        f" CREATE TABLE {schema}.t (k text COLLATE {schema}.nocase PRIMARY KEY, v int)"
    )
    batch = pa.record_batch([pa.array(["a", "A"]), pa.array([1, 2], pa.int32())], names=["k", "v"])
    bring(target_of(postgresql, f"{schema}.t", mode="upsert"), batch)
    assert postgresql.execute(f"SELECT k, v FROM {schema}.t") == [("A", 2)]


def test_table_of_keys_alone_takes_upserts(postgresql: Server, schema: str) -> None:
    postgresql.execute(f"CREATE TABLE {schema}.t (id bigint, v text, UNIQUE (v, id))")
    bring(target_of(postgresql, f"{schema}.t", mode="upsert"), rows((1, "a"), (1, "a"), (2, "a")))
    assert sorted(postgresql.execute(f"SELECT id, v FROM {schema}.t")) == [(1, "a"), (2, "a")]


@pytest.mark.parametrize(
    ("ddl", "words"),
    [
        ("CREATE TABLE {s}.t (id bigint, v text)", "has no primary key"),
        (
            "CREATE TABLE {s}.t (id bigint, v text); CREATE UNIQUE INDEX ON {s}.t (id) WHERE v = ''",
            "has no primary key",
        ),
        ("CREATE TABLE {s}.t (id bigint PRIMARY KEY, v text UNIQUE)", "more than one unique index"),
        (
            "CREATE TABLE {s}.t (other int DEFAULT 1 PRIMARY KEY, id bigint, v text)",
            "not in the DataFrame",
        ),
        ("CREATE TABLE {s}.t (id bigint PRIMARY KEY DEFERRABLE, v text)", "has no primary key"),
    ],
)
def test_table_without_one_key_is_refused(
    postgresql: Server, schema: str, ddl: str, words: str
) -> None:
    postgresql.execute(ddl.format(s=schema))
    with pytest.raises(SchemaMismatch, match=words) as caught:
        target_of(postgresql, f"{schema}.t", mode="upsert").plan(rows((1, "a")).schema, "key")
    assert caught.value.remedy


def test_session_makes_its_temporary_table_once(postgresql: Server, schema: str) -> None:
    """Many epochs over one session share one, whose rows are gone after each."""
    postgresql.execute(f"CREATE TABLE {schema}.t (id bigint PRIMARY KEY, v text)")
    target = target_of(postgresql, f"{schema}.t", mode="upsert")
    target.plan(rows((1, "a")).schema, "first")
    with new_query(target) as session:
        for number in range(5):
            bring_over(session, target, [rows((number, "a"))])
        staged = postgresql.execute("SELECT relname FROM pg_class WHERE relname LIKE 'wal_sink %'")
        assert len(staged) == 1
    assert postgresql.execute(f"SELECT count(*) FROM {schema}.t") == [(5,)]


def test_unavailable_cells_of_any_type_keep_their_values(postgresql: Server, schema: str) -> None:
    """Where the text does not fit the type: a document, bytes, a uuid, a short text; none takes a null."""
    columns = {
        "b": ("bytea", b"one", b"two"),
        "j": ("jsonb", '{"a": 1}', '{"a": 2}'),
        "u": (
            "uuid",
            "00000000-0000-0000-0000-000000000001",
            "00000000-0000-0000-0000-000000000002",
        ),
        "w": ("varchar(3)", "one", "two"),
    }
    listed = ", ".join(f"{name} {type_} NOT NULL" for name, (type_, _, _) in columns.items())
    postgresql.execute(f"CREATE TABLE {schema}.t (id int PRIMARY KEY, {listed})")
    target = target_of(postgresql, f"{schema}.t", mode="upsert", unavailable_value="?")

    def row(id_: int, number: int, kept: str = "") -> dict[str, object]:
        values = {name: values[number] for name, values in columns.items()}
        if kept:
            values[kept] = b"?" if kept == "b" else "?"
        return {"id": id_, **values}

    types = [pa.binary() if name == "b" else pa.string() for name in columns]
    fields = pa.schema([("id", pa.int32()), *zip(columns, types, strict=True)])
    written = [row(i, 1) for i in range(4)]
    changes = [row(i, 2, name) for i, name in enumerate(columns)]
    for records in (written, changes):
        bring(target, pa.RecordBatch.from_pylist(records, fields))
    texts = ", ".join(
        f"convert_from({name}, 'UTF8')" if name == "b" else f"{name}::text" for name in columns
    )
    for i, name in enumerate(columns):
        (stored,) = postgresql.execute(f"SELECT {texts} FROM {schema}.t WHERE id = {i}")
        wanted = [values[1 if other == name else 2] for other, values in columns.items()]
        assert [*stored] == [v.decode() if isinstance(v, bytes) else v for v in wanted]
