"""Deletes by row: what is exact beside the contract, and what a start refuses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.postgresql.delivery import bring, new_query, target_of
from wal_sink.demo.servers.postgresql import Server
from wal_sink.errors import InvalidRow, OptionError, SchemaMismatch
from wal_sink.targets.base import RowSlice
from wal_sink.targets.postgresql import PostgresqlOptions, PostgresqlTarget
from wal_sink.testing.contracts.rows import deliver

SCHEMA = pa.schema([("id", pa.int64()), ("op", pa.string()), ("v", pa.string())])


def rows(*changes: tuple[int | None, str, str | None]) -> pa.RecordBatch:
    columns = zip(*changes, strict=True)
    arrays = [pa.array(c, field.type) for c, field in zip(columns, SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=SCHEMA)


def deleting(server: Server, table: str) -> PostgresqlTarget:
    return target_of(server, table, mode="upsert", operation_column="op")


@pytest.mark.parametrize("apart", [True, False], ids=["two batches", "one batch"])
def test_row_after_its_delete_has_nothing_of_before(
    postgresql: Server, schema: str, *, apart: bool
) -> None:
    """Columns that the DataFrame lacks begin again after a delete, however rows are cut into batches."""
    postgresql.execute(f"CREATE TABLE {schema}.t (id bigint PRIMARY KEY, v text, w int DEFAULT 7)")
    postgresql.execute(f"INSERT INTO {schema}.t VALUES (1, 'old', 1), (2, 'old', 2), (3, 'old', 3)")
    first, second = (
        [(1, "delete", None), (3, "delete", None)],
        [(1, "upsert", "a"), (2, "upsert", "b")],
    )
    batches = [rows(*first), rows(*second)] if apart else [rows(*first, *second)]
    bring(deleting(postgresql, f"{schema}.t"), *batches)
    stored = postgresql.execute(f"SELECT id, v, w FROM {schema}.t ORDER BY id")
    assert stored == [(1, "a", 7), (2, "b", 2)]


def test_delete_needs_the_key_alone(postgresql: Server, schema: str) -> None:
    """Columns that take no null, by a domain too, and values that do not fit, are no hindrance."""
    postgresql.execute(
        f"CREATE DOMAIN {schema}.word AS text NOT NULL;"
        f" CREATE TABLE {schema}.t (id bigint PRIMARY KEY, v {schema}.word, w varchar(2) NOT NULL)"
    )
    fields = [*SCHEMA, pa.field("w", pa.string())]
    batch = pa.record_batch(
        [
            pa.array([1, 2, 1]),
            pa.array(["upsert", "upsert", "delete"]),
            pa.array(["a", "b", None]),
            pa.array(["x", "y", "far too long"]),
        ],
        schema=pa.schema(fields),
    )
    bring(deleting(postgresql, f"{schema}.t"), batch)
    assert postgresql.execute(f"SELECT id, v, w FROM {schema}.t") == [(2, "b", "y")]
    target = deleting(postgresql, f"{schema}.t")
    with pytest.raises(InvalidRow, match="takes no null"):
        target.check(
            batch.take([0]).set_column(2, "v", pa.nulls(1, pa.string())),
            target.plan(batch.schema, "x"),
        )


def test_keys_are_equal_when_the_table_says_so(postgresql: Server, schema: str) -> None:
    """By a collation that ignores case; and keys that go through a cast."""
    postgresql.execute(
        f"CREATE COLLATION {schema}.nocase"
        " (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
        f" CREATE TABLE {schema}.t (k text COLLATE {schema}.nocase, u uuid[], PRIMARY KEY (k, u))"
    )
    ids = [["123e4567-e89b-12d3-a456-426614174000"]] * 3
    columns = {"k": ["a", "b", "A"], "u": ids, "op": ["upsert", "upsert", "delete"]}
    bring(deleting(postgresql, f"{schema}.t"), pa.record_batch(columns))
    assert postgresql.execute(f"SELECT k FROM {schema}.t") == [("b",)]


@pytest.mark.parametrize(
    ("ddl", "words"),
    [
        ("CREATE TABLE {s}.t (id bigint PRIMARY KEY, v text, op text)", "op, which is a column of"),
        ("CREATE TABLE {s}.t (id bigint, op text PRIMARY KEY, v text)", "op, which is a column of"),
        ("CREATE TABLE {s}.t (id bigint, v text)", "no primary key"),
    ],
)
def test_table_unfit_for_deletes_is_refused(
    postgresql: Server, schema: str, ddl: str, words: str
) -> None:
    postgresql.execute(ddl.format(s=schema))
    with pytest.raises(SchemaMismatch, match=words) as caught:
        deleting(postgresql, f"{schema}.t").plan(SCHEMA, "key")
    assert caught.value.remedy


@contextlib.contextmanager
def a_user(postgresql: Server, schema: str, privileges: str) -> Iterator[str]:
    """Make a user with privileges on the table `t`; yield its URI."""
    name = f"user_{schema}"
    postgresql.execute(
        f"CREATE ROLE {name} LOGIN PASSWORD 'p'; GRANT USAGE, CREATE ON SCHEMA {schema} TO {name};"
        f" GRANT {privileges} ON {schema}.t TO {name}"
    )
    try:
        yield postgresql.uri_of(name, "p")
    finally:
        postgresql.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_user_without_delete_privilege_is_refused(postgresql: Server, schema: str) -> None:
    """At the start, with the GRANT; without the option that privilege is not asked for."""
    postgresql.execute(f"CREATE TABLE {schema}.t (id bigint PRIMARY KEY, v text)")
    with a_user(postgresql, schema, "SELECT, INSERT, UPDATE") as uri:
        options = {"uri": uri, "table": f"{schema}.t", "mode": "upsert"}
        PostgresqlTarget(PostgresqlOptions(**options)).plan(SCHEMA.remove(1), "key")  # type: ignore[arg-type]
        target = PostgresqlTarget(PostgresqlOptions(operation_column="op", **options))  # type: ignore[arg-type]
        with pytest.raises(SchemaMismatch, match=r"(?s)lacks privileges.*DELETE") as caught:
            target.plan(SCHEMA, "key")
        postgresql.execute(caught.value.remedy.removeprefix("Run as the owner: "))
        bring(target, rows((1, "upsert", "a"), (1, "delete", None)))
        assert postgresql.execute(f"SELECT count(*) FROM {schema}.t") == [(0,)]


def test_row_hidden_by_a_later_policy_stops_the_flush(postgresql: Server, schema: str) -> None:
    """Row-level security that comes after the start: a delete would find nothing, and say nothing."""
    postgresql.execute(
        f"CREATE TABLE {schema}.t (id bigint PRIMARY KEY, v text); INSERT INTO {schema}.t VALUES (1, 'a');"
        f" CREATE POLICY hide ON {schema}.t USING (id > 1)"
    )
    with a_user(postgresql, schema, "ALL") as uri:
        options = {"uri": uri, "table": f"{schema}.t", "mode": "upsert"}
        target = PostgresqlTarget(PostgresqlOptions(operation_column="op", **options))  # type: ignore[arg-type]
        batch = rows((1, "delete", None))
        plan = target.plan(batch.schema, "key")
        with new_query(target) as session:
            postgresql.execute(f"ALTER TABLE {schema}.t ENABLE ROW LEVEL SECURITY")
            with pytest.raises(SchemaMismatch, match="row-level security"):
                deliver(session, plan, RowSlice(0, target.check(batch, plan), 0))


def test_append_mode_is_refused(postgresql: Server) -> None:
    with pytest.raises(OptionError, match="without a key") as caught:
        target_of(postgresql, "t", operation_column="op")
    assert "postgresql.mode to upsert" in caught.value.remedy
