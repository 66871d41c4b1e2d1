"""Upserts: the row of a key is replaced, and the last one of an epoch wins."""

from __future__ import annotations

import json
import random
import string

import pyarrow as pa
import pytest

from tests.postgresql.delivery import bring, bring_over, new_query, target_of
from wal_sink.demo.servers.postgresql import Server
from wal_sink.errors import InvalidRow, SchemaMismatch


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


def test_a_table_of_keys_alone(postgresql: Server, schema: str) -> None:
    postgresql.execute(f"CREATE TABLE {schema}.t (id bigint, v text, UNIQUE (v, id))")
    bring(target_of(postgresql, f"{schema}.t", mode="upsert"), rows((1, "a"), (1, "a"), (2, "a")))
    assert sorted(postgresql.execute(f"SELECT id, v FROM {schema}.t")) == [(1, "a"), (2, "a")]


def noise(length: int) -> str:
    """Return a text that no compression makes shorter than the index takes."""
    return "".join(random.Random(length).choices(string.ascii_letters + string.digits, k=length))


@pytest.mark.parametrize(
    ("columns", "longest"),
    [
        ("id bigint, v text PRIMARY KEY", 2_692),
        ("id bigint, v varchar(9000), PRIMARY KEY (v, id)", 2_645),
        ("id bigint PRIMARY KEY, v text", None),
        ("id bigint, v text, PRIMARY KEY (id) INCLUDE (v)", 2_645),
        ("id bigint, v character(2600) PRIMARY KEY", 92),
    ],
)
def test_a_key_that_is_too_long_for_its_index_is_refused(
    postgresql: Server, schema: str, columns: str, longest: int | None
) -> None:
    """The server would refuse it for ever; the longest that passes arrives."""
    postgresql.execute(f"CREATE TABLE {schema}.t ({columns})")
    target = target_of(postgresql, f"{schema}.t", mode="upsert")
    good = rows((1, noise(longest or 9_000)), (2, "b"))
    bring(target, good)
    assert postgresql.execute(f"SELECT count(*) FROM {schema}.t") == [(2,)]
    if longest is not None:
        plan = target.plan(good.schema, "key")
        with pytest.raises(
            InvalidRow, match=r"longer than its index .*the row with .*\b3\b|v='"
        ) as bad:
            target.check(rows((1, "a"), (3, noise(longest + 1))), plan)
        assert "sha2" in bad.value.remedy
        assert bad.value.rows.to_pylist() == [False, True]


@pytest.mark.parametrize("value", [[0] * 200, [1] * 200, ["", "a"] * 90, [[], [1]] * 20])
def test_a_document_or_an_array_as_a_key_is_never_too_long_unnoticed(
    postgresql: Server, schema: str, value: list[object]
) -> None:
    """What passes the check is taken, though the index holds it in another form than the log."""
    flat = isinstance(value[0], str)
    type_ = "text[]" if flat else "jsonb"
    postgresql.execute(f"CREATE TABLE {schema}.t (x {type_} PRIMARY KEY)")
    target = target_of(postgresql, f"{schema}.t", mode="upsert")
    source = pa.list_(pa.string()) if flat else pa.string()
    for times in range(1, 12):
        given = value * times
        batch = pa.record_batch(
            [pa.array([given if flat else json.dumps(given, separators=(",", ":"))], source)],
            names=["x"],
        )
        try:
            target.check(batch, target.plan(batch.schema, "key"))
        except InvalidRow:
            break
        bring(target, batch)
    else:
        pytest.fail("nothing was refused")


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
        (
            """CREATE COLLATION {s}.nocase (provider=icu, locale='und-u-ks-level2', deterministic=false);
            CREATE TABLE {s}.t (id bigint, v text); CREATE UNIQUE INDEX ON {s}.t (v COLLATE {s}.nocase)""",
            "has no primary key",
        ),
    ],
)
def test_a_table_without_one_key_is_refused(
    postgresql: Server, schema: str, ddl: str, words: str
) -> None:
    postgresql.execute(ddl.format(s=schema))
    with pytest.raises(SchemaMismatch, match=words) as caught:
        target_of(postgresql, f"{schema}.t", mode="upsert").plan(rows((1, "a")).schema, "key")
    assert caught.value.remedy


def test_it_needs_no_temporary_table_to_be_made_twice(postgresql: Server, schema: str) -> None:
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
        (found,) = postgresql.execute(f"SELECT {texts} FROM {schema}.t WHERE id = {i}")
        wanted = [values[1 if other == name else 2] for other, values in columns.items()]
        assert [*found] == [each.decode() if isinstance(each, bytes) else each for each in wanted]
