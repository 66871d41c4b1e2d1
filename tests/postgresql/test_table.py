"""What the target says of a table at the start: refused with a remedy that works, or written to."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tests.postgresql.delivery import bring, target_of
from tests.support.transcripts import transcript
from wal_sink.demo.servers.postgresql import Server
from wal_sink.errors import (
    OptionError,
    SchemaMismatch,
    TargetRefused,
    TargetUnavailable,
    WalSinkError,
)
from wal_sink.model.ledger import Outcome
from wal_sink.targets.base import RowSlice
from wal_sink.targets.postgresql import PostgresqlOptions, PostgresqlTarget
from wal_sink.targets.postgresql.connection import _PIECE
from wal_sink.targets.postgresql.schema import find, read_columns, read_unique
from wal_sink.targets.sql.options import TableName
from wal_sink.targets.sql.unique import Unique
from wal_sink.testing.contracts.ledger import create, finish, following, row_of
from wal_sink.testing.contracts.rows import deliver, write_all
from wal_sink.testing.micro_batches import PlayedQuery

BATCH = pa.record_batch([pa.array([1, 2], pa.int64()), pa.array(["a", "b"])], names=["id", "v"])
TABLE = "(id bigint, v text)"


def refused(server: Server, table: str, **options: object) -> WalSinkError:
    with pytest.raises(WalSinkError) as caught:
        target_of(server, table, **options).plan(BATCH.schema, "key")
    return caught.value


def remedied(server: Server, table: str, error: WalSinkError, **options: object) -> None:
    """Run the statements of the remedy, as an operator copies them; then rows arrive."""
    for statement in re.findall(r"(?:ALTER|CREATE|DROP|GRANT)\b.*?;", error.remedy, re.DOTALL):
        server.execute(statement)
    bring(target_of(server, table, **options), BATCH)
    assert server.execute(f"SELECT id, v FROM {table} ORDER BY id") == [(1, "a"), (2, "b")]


def test_missing_table_comes_with_its_ddl(postgresql: Server, schema: str) -> None:
    postgresql.execute(f"CREATE TABLE {schema}.orders {TABLE}")
    error = refused(postgresql, f"{schema}.order")
    assert "There is no table" in error.what
    assert f"Did you mean {schema}.orders?" in error.what
    remedied(postgresql, f"{schema}.order", error)


def test_misspelt_schema_is_named(postgresql: Server, schema: str) -> None:
    postgresql.execute(f"CREATE TABLE {schema}.orders {TABLE}")
    assert f"Did you mean {schema}.orders?" in refused(postgresql, f"{schema}x.orders").what


@pytest.mark.parametrize(
    ("ddl", "words"),
    [
        ("CREATE VIEW {s}.t AS SELECT 1::bigint AS id, ''::text AS v", "a view"),
        ("CREATE MATERIALIZED VIEW {s}.t AS SELECT 1::bigint AS id", "a view"),
        ("CREATE UNLOGGED TABLE {s}.t (id bigint, v text)", "unlogged"),
        (
            "CREATE TABLE {s}.t (id bigint, v text) PARTITION BY RANGE (id);"  # noqa: ISC004
            " CREATE TABLE {s}.p PARTITION OF {s}.t DEFAULT PARTITION BY RANGE (id);"
            " CREATE UNLOGGED TABLE {s}.q PARTITION OF {s}.p DEFAULT",
            ".q is unlogged",
        ),
        ("CREATE TABLE {s}.t (id bigint PRIMARY KEY, v text)", "is unique by t_pkey"),
        (
            "CREATE TABLE {s}.t (id bigint, v text); CREATE UNIQUE INDEX u ON {s}.t (lower(v))",
            "is unique by u",
        ),
    ],
)
def test_table_not_written_exactly_once_is_refused(
    postgresql: Server, schema: str, ddl: str, words: str
) -> None:
    postgresql.execute(ddl.format(s=schema))
    assert words in refused(postgresql, f"{schema}.t").what


def test_remedies_of_unlogged_and_unique_tables_work(postgresql: Server, schema: str) -> None:
    postgresql.execute(f"CREATE UNLOGGED TABLE {schema}.t {TABLE}")
    remedied(postgresql, f"{schema}.t", refused(postgresql, f"{schema}.t"))
    postgresql.execute(f"CREATE TABLE {schema}.p (id bigint PRIMARY KEY, v text)")
    remedied(postgresql, f"{schema}.p", refused(postgresql, f"{schema}.p"))


PARTS = (
    "CREATE TABLE {s}.t (id bigint {key}, v text) PARTITION BY RANGE (id);"
    " CREATE TABLE {s}.low PARTITION OF {s}.t FOR VALUES FROM (0) TO (2);"
    " CREATE TABLE {s}.high PARTITION OF {s}.t DEFAULT;"
)


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_unique_index_of_one_partition_is_refused(
    postgresql: Server, schema: str, mode: str
) -> None:
    """It refuses rows as one of the whole table does; one that all partitions have is one index."""
    key = "PRIMARY KEY" if mode == "upsert" else ""
    ddl = PARTS + " CREATE UNIQUE INDEX u ON {s}.high (v)"
    postgresql.execute(ddl.format(s=schema, key=key))
    error = refused(postgresql, f"{schema}.t", mode=mode)
    assert f"u of {schema}.high" in error.what
    remedied(postgresql, f"{schema}.t", error, mode=mode)


@pytest.mark.parametrize("relation", ["t", "low", "high", "wal_sink_ledger"])
def test_table_made_unlogged_takes_no_rows(postgresql: Server, schema: str, relation: str) -> None:
    """After the start, and over a session that has written to it. A window keeps others from altering it."""
    ddl = "CREATE TABLE {s}.t (id bigint, v text)" if relation == "t" else PARTS
    postgresql.execute(ddl.format(s=schema, key=""))
    target = target_of(postgresql, f"{schema}.t", lock_timeout=0.5)
    plan = target.plan(BATCH.schema, "key")
    low, high = (RowSlice(0, target.check(BATCH.slice(i, 1), plan), 0) for i in range(2))
    with target.connect("query") as session:
        create(session, "query")
        deliver(session, plan, low, high)
        row = row_of(session)
        postgresql.execute(f"ALTER TABLE {schema}.{relation} SET UNLOGGED")
        with pytest.raises(SchemaMismatch, match=rf"{relation} is unlogged") as caught:
            write_all(session, [(plan, low), (plan, high)], row)
    with target.connect("query") as session:
        assert session.read() == row
        assert postgresql.execute(f"SELECT count(*) FROM {schema}.t") == [(2,)]
        for statement in re.findall(r"ALTER\b.*?;", caught.value.remedy):
            postgresql.execute(statement)
        deliver(session, plan, low)


@pytest.mark.parametrize("deletes", [False, True])
@pytest.mark.parametrize("ddl", ["CREATE TABLE {s}.t (id bigint UNIQUE, v text)", PARTS])
def test_published_table_without_replica_identity_is_refused(
    postgresql: Server, schema: str, ddl: str, *, deletes: bool
) -> None:
    """By the server, and never row by row: at the start, or of a partition in the flush."""
    postgresql.execute(ddl.format(s=schema, key="UNIQUE"))
    events = "delete" if deletes else "update"
    options = {"mode": "upsert"} | ({"operation_column": "op"} if deletes else {})
    fields = pa.schema([("id", pa.int64()), ("v", pa.string()), ("op", pa.string())])
    fields = fields if deletes else fields.remove(2)
    target = target_of(postgresql, f"{schema}.t", **options)
    query = PlayedQuery(target, fields)
    query.on_invalid_row = "quarantine"
    rows: list[tuple[Any, ...]] = [(number, "a") for number in range(-3, 30)]
    query.run().batch([(*row, "delete") for row in rows] if deletes else rows)
    postgresql.execute(
        f"CREATE PUBLICATION p_{schema} FOR TABLE {schema}.t WITH (publish = 'insert, {events}')"
    )
    try:
        if ddl is not PARTS:  # the server does not read partitions that get no row
            with pytest.raises(TargetRefused, match="does not have a replica identity"):
                target.plan(fields, "key")
        for _ in range(3):  # each partition, and then the rows
            try:
                query.flush()
            except TargetRefused as error:
                (statement,) = re.findall(r"ALTER\b.*?;", error.remedy)
                postgresql.execute(statement)
        assert "REPLICA IDENTITY FULL" in statement
        count = postgresql.execute(f"SELECT count(*) FROM {schema}.t")
        assert count == [(0 if deletes else len(rows),)]
    finally:
        postgresql.execute(f"DROP PUBLICATION p_{schema}")


@pytest.mark.parametrize("name", ["t", "wal_sink_ledger"])
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_withdrawn_right_comes_with_its_grant(
    postgresql: Server, schema: str, user: str, name: str, mode: str
) -> None:
    """The flush goes on when it is given."""
    key = " PRIMARY KEY" * (mode == "upsert")
    postgresql.execute(
        f"CREATE TABLE {schema}.t (id bigint{key}, v text); GRANT USAGE, CREATE ON SCHEMA {schema} TO {user};"
        f" GRANT INSERT, SELECT, UPDATE ON {schema}.t TO {user}"
    )
    options = PostgresqlOptions(uri=postgresql.uri_of(user, "p"), table=f"{schema}.t", mode=mode)  # type: ignore[arg-type]
    query = PlayedQuery(PostgresqlTarget(options), BATCH.schema)
    query.run().batch([(1, "a")])
    postgresql.execute(f"REVOKE ALL ON {schema}.{name} FROM {user}")
    with pytest.raises(TargetRefused, match=f"permission denied for table {name}") as caught:
        query.flush()
    postgresql.execute(caught.value.remedy.removeprefix("Run as the owner: "))
    query.flush()
    assert postgresql.execute(f"SELECT * FROM {schema}.t") == [(1, "a")]


def test_upsert_of_1600_columns_is_refused(postgresql: Server, schema: str) -> None:
    """The temporary table through which rows go has one more: a start says so."""
    names = [f"c{n}" for n in range(1_600)]
    columns = ", ".join(f"{name} smallint" for name in names)
    postgresql.execute(f"CREATE TABLE {schema}.t ({columns}, PRIMARY KEY (c0))")
    target = target_of(postgresql, f"{schema}.t", mode="upsert")
    with pytest.raises(TargetRefused, match="tables can have at most 1600 columns") as caught:
        target.plan(pa.schema([(name, pa.int16()) for name in names]), "key")
    assert "Leave some columns out of the DataFrame." in caught.value.remedy


def test_foreign_table_is_refused(postgresql: Server, schema: str) -> None:
    """Also as a partition, and one that is attached under a session: it commits on its own."""
    postgresql.execute(f"CREATE FOREIGN DATA WRAPPER fdw_{schema}")
    postgresql.execute(f"CREATE SERVER server_{schema} FOREIGN DATA WRAPPER fdw_{schema}")
    try:
        postgresql.execute(
            f"CREATE FOREIGN TABLE {schema}.f (id bigint, v text) SERVER server_{schema}"
        )
        assert "a foreign table" in refused(postgresql, f"{schema}.f").what
        postgresql.execute(f"CREATE TABLE {schema}.t {TABLE} PARTITION BY RANGE (id)")
        target = target_of(postgresql, f"{schema}.t")
        plan = target.plan(BATCH.schema, "key")
        postgresql.execute(
            f"CREATE FOREIGN TABLE {schema}.part PARTITION OF {schema}.t FOR VALUES FROM (0) TO (9)"
            f" SERVER server_{schema}"
        )
        with target.connect("query") as session:
            create(session, "query")
            with pytest.raises(SchemaMismatch, match=r"\.part is a view or a foreign table"):
                deliver(session, plan, RowSlice(0, target.check(BATCH, plan), 0))
        assert f"{schema}.part" in refused(postgresql, f"{schema}.t").what
    finally:
        postgresql.execute(f"DROP FOREIGN DATA WRAPPER fdw_{schema} CASCADE")


@pytest.mark.parametrize(
    "ddl",
    [
        "CREATE TABLE {s}.t (id bigint, v text) PARTITION BY RANGE (id);"  # noqa: ISC004
        " CREATE TABLE {s}.t0 PARTITION OF {s}.t FOR VALUES FROM (1) TO (2);"
        " CREATE TABLE {s}.t1 PARTITION OF {s}.t DEFAULT",
        "CREATE TABLE {s}.t (n bigserial PRIMARY KEY, id bigint, v text)",
        "CREATE TABLE {s}.t (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id bigint, v text)",
        "CREATE TABLE {s}.t (id bigint, l int GENERATED ALWAYS AS (length(v)) STORED, v text)",
        "CREATE DOMAIN {s}.name AS varchar(10) NOT NULL; CREATE TABLE {s}.t (v {s}.name, id bigint)",
        "CREATE TABLE {s}.t (gone int, id bigint, v text); ALTER TABLE {s}.t DROP COLUMN gone",
    ],
)
def test_tables_of_many_kinds_take_rows(postgresql: Server, schema: str, ddl: str) -> None:
    """Partitioned, with an identity or a generated column, over a domain, after a column was dropped."""
    postgresql.execute(ddl.format(s=schema))
    bring(target_of(postgresql, f"{schema}.t"), BATCH)
    assert postgresql.execute(f"SELECT id, v FROM {schema}.t ORDER BY id") == [(1, "a"), (2, "b")]


def test_catalogue_is_read_in_its_own_words(postgresql: Server, schema: str) -> None:
    postgresql.execute(
        f"CREATE DOMAIN {schema}.inner AS numeric(10,2) CHECK (VALUE > 0);"
        f" CREATE DOMAIN {schema}.outer AS {schema}.inner NOT NULL DEFAULT 1;"
        f" CREATE TABLE {schema}.t (a int PRIMARY KEY, b {schema}.outer, c timestamptz(3) DEFAULT now(),"
        " d varchar(7)[], CHECK (a > 0));"
        f" CREATE UNIQUE INDEX partly ON {schema}.t (c) INCLUDE (d) WHERE a > 5"
    )
    with target_of(postgresql, f"{schema}.t").open() as connection:
        live = find(connection, TableName(schema, "t"))
        columns, unique = read_columns(connection, live), read_unique(connection, live)
    assert [column[:4] for column in columns] == [
        ("a", "integer", True, False),
        ("b", "numeric(10,2)", True, True),
        ("c", "timestamp(3) with time zone", False, True),
        ("d", "character varying(7)[]", False, False),
    ]
    assert unique == (
        Unique("t_pkey", ("a",), True, f"ALTER TABLE {schema}.t DROP CONSTRAINT t_pkey;"),
        Unique("partly", ("c",), False, f"DROP INDEX {schema}.partly;"),
    )


def test_start_warns_of_triggers(
    postgresql: Server, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also of those of a partition."""
    postgresql.execute(PARTS.format(s=schema, key=""))
    postgresql.execute(
        f"CREATE FUNCTION {schema}.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
        f" CREATE TRIGGER whole AFTER INSERT ON {schema}.t FOR EACH ROW EXECUTE FUNCTION {schema}.f();"
        f" CREATE TRIGGER drops BEFORE INSERT ON {schema}.low FOR EACH ROW EXECUTE FUNCTION {schema}.f()"
    )
    with caplog.at_level(logging.WARNING):
        target_of(postgresql, f"{schema}.t").plan(BATCH.schema, "key")
    assert "triggers (drops, whole)" in caplog.text


def test_start_warns_of_a_server_without_fsync(
    postgresql: Server, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What it acknowledges may be gone after a power loss."""
    with Server({"fsync": "off"}) as careless, caplog.at_level(logging.WARNING):
        for server, text in ((postgresql, 0), (careless, 1)):
            server.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
            server.execute(f"CREATE TABLE {schema}.t {TABLE}")
            target_of(server, f"{schema}.t").plan(BATCH.schema, "key")
            assert caplog.text.count("the server has fsync = off") == text


@pytest.fixture
def user(postgresql: Server, schema: str) -> Iterator[str]:
    """Return a user who may do nothing."""
    name = f"user_{schema}"
    postgresql.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'p'")
    yield name
    postgresql.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_grants_that_errors_name_are_enough(
    postgresql: Server, schema: str, user: str, mode: str
) -> None:
    """An operator without any privilege copies what each error says, until rows arrive."""
    key = " PRIMARY KEY" if mode == "upsert" else ""
    postgresql.execute(f"CREATE TABLE {schema}.t (id bigint{key}, v text)")
    uri = postgresql.uri_of(user, "p")
    target = PostgresqlTarget(PostgresqlOptions(uri=uri, table=f"{schema}.t", mode=mode))  # type: ignore[arg-type]
    errors = []
    for _ in range(6):
        try:
            bring(target, BATCH)
            break
        except SchemaMismatch as error:
            errors.append(error.what)
            for statement in re.findall(r"(?:CREATE|GRANT)\b.*?;", error.remedy):
                postgresql.execute(statement)
    assert postgresql.execute(f"SELECT count(*) FROM {schema}.t") == [(2,)], errors
    assert any("lacks privileges" in error for error in errors)


def test_grant_on_some_columns_is_not_enough(postgresql: Server, schema: str, user: str) -> None:
    """COPY names all columns of the DataFrame: the privilege is needed for each of them, and no other."""
    postgresql.execute(
        f"CREATE TABLE {schema}.t (id bigint, v text, other int);"
        f" GRANT USAGE, CREATE ON SCHEMA {schema} TO {user}; GRANT INSERT (id) ON {schema}.t TO {user}"
    )
    options = PostgresqlOptions(uri=postgresql.uri_of(user, "p"), table=f"{schema}.t")
    with pytest.raises(SchemaMismatch, match=r"lacks privileges: permission denied"):
        PostgresqlTarget(options).plan(BATCH.schema, "key")
    postgresql.execute(f"GRANT INSERT (v) ON {schema}.t TO {user}")
    bring(PostgresqlTarget(options), BATCH)
    assert postgresql.execute(f"SELECT count(*) FROM {schema}.t") == [(2,)]


def test_trigger_that_refuses_a_start_is_named(postgresql: Server, schema: str) -> None:
    """A start runs the statement that writes: the error is not taken for one of the login."""
    postgresql.execute(
        f"CREATE TABLE {schema}.t {TABLE}; CREATE FUNCTION {schema}.f() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'not today'; END $$; CREATE TRIGGER g BEFORE INSERT ON"
        f" {schema}.t FOR EACH STATEMENT EXECUTE FUNCTION {schema}.f()"
    )
    with pytest.raises(
        TargetRefused, match=r"refuses: RaiseException: not today.*\n.*what the answer names"
    ):
        target_of(postgresql, f"{schema}.t").plan(BATCH.schema, "key")


def test_locked_table_delays_no_start(postgresql: Server, schema: str) -> None:
    """As by CREATE INDEX: what the server would refuse cannot be asked then."""
    postgresql.execute(f"CREATE TABLE {schema}.t {TABLE}")
    target = target_of(postgresql, f"{schema}.t", lock_timeout=0.1)
    with psycopg.connect(postgresql.uri) as other:
        other.execute(f"LOCK TABLE {schema}.t IN SHARE MODE")
        assert target.plan(BATCH.schema, "key").columns


def test_row_level_security_is_refused(postgresql: Server, schema: str, user: str) -> None:
    postgresql.execute(
        f"CREATE TABLE {schema}.t {TABLE}; ALTER TABLE {schema}.t ENABLE ROW LEVEL SECURITY;"
        f" GRANT USAGE ON SCHEMA {schema} TO {user}; GRANT ALL ON {schema}.t TO {user}"
    )
    options = PostgresqlOptions(uri=postgresql.uri_of(user, "p"), table=f"{schema}.t")
    with pytest.raises(SchemaMismatch, match="row-level security") as caught:
        PostgresqlTarget(options).plan(BATCH.schema, "key")
    assert "BYPASSRLS" in caught.value.remedy


def test_unlogged_ledger_is_refused(postgresql: Server, schema: str) -> None:
    postgresql.execute(f"CREATE TABLE {schema}.t {TABLE}; CREATE UNLOGGED TABLE {schema}.l (x int)")
    error = refused(postgresql, f"{schema}.t", ledger_table="l")
    assert "is unlogged" in error.what


def test_update_that_counts_changed_rows_is_refused(postgresql: Server, schema: str) -> None:
    """A trigger makes PostgreSQL count as MySQL does by default: a flusher would read a refusal."""
    postgresql.execute(f"CREATE TABLE {schema}.t {TABLE}")
    target_of(postgresql, f"{schema}.t").plan(BATCH.schema, "key")
    postgresql.execute(
        f"CREATE TRIGGER z BEFORE UPDATE ON {schema}.wal_sink_ledger"
        " FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()"
    )
    error = refused(postgresql, f"{schema}.t")
    assert "has the rowcount 0" in error.what
    assert "count the rows that are found" in error.remedy


def test_failed_connection_says_what_is_wrong(
    postgresql: Server, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The password comes from the environment where no option has it, and is read at each connection."""
    postgresql.execute(f"CREATE TABLE {schema}.t {TABLE}")
    table = f"{schema}.t"
    target = PostgresqlTarget(PostgresqlOptions(uri=postgresql.uri_of("postgres"), table=table))
    monkeypatch.setenv("WAL_SINK_POSTGRESQL_PASSWORD", "wrong")
    with pytest.raises(OptionError) as caught:
        target.plan(BATCH.schema, "key")
    text = str(caught.value).replace(str(postgresql.port), "5432")
    assert f"wal_sink.errors.OptionError: {text}\n" == transcript("wrong password")
    elsewhere = postgresql.uri_of("postgres", postgresql.password, "nowhere")
    with pytest.raises(OptionError, match="has no such database"):
        PostgresqlTarget(PostgresqlOptions(uri=elsewhere, table=table)).plan(BATCH.schema, "key")
    monkeypatch.setenv("WAL_SINK_POSTGRESQL_PASSWORD", postgresql.password)
    assert target.plan(BATCH.schema, "key").table == f'"{schema}"."t"'
    monkeypatch.delenv("WAL_SINK_POSTGRESQL_PASSWORD")

    unknown = PostgresqlOptions(uri=f"{postgresql.uri}?colour=red", table=table)
    with pytest.raises(OptionError, match="colour"):
        PostgresqlTarget(unknown).plan(BATCH.schema, "key")
    secured = PostgresqlOptions(uri=f"{postgresql.uri}?sslmode=require", table=table)
    with pytest.raises(OptionError, match="has no TLS, which sslmode"):
        PostgresqlTarget(secured).plan(BATCH.schema, "key")
    nowhere = PostgresqlOptions(uri="postgresql://u:hush@127.0.0.1:1/d", table=table)
    with pytest.raises(TargetUnavailable) as away:
        PostgresqlTarget(nowhere).plan(BATCH.schema, "key")
    assert "hush" not in str(away.value)


def test_table_altered_between_windows_takes_rows_unchanged(
    postgresql: Server, schema: str
) -> None:
    """COPY's binary format has no types: eight bytes of a bigint are a double precision as well."""
    table = f"{schema}.t"
    postgresql.execute(f"CREATE TABLE {table} {TABLE}")
    target = target_of(postgresql, table)
    plan = target.plan(BATCH.schema, "key")
    with target.connect("query") as session:
        create(session, "query")
        deliver(session, plan, RowSlice(0, target.check(BATCH, plan), 0))
        postgresql.execute(f"ALTER TABLE {table} ALTER COLUMN id TYPE double precision")
        deliver(session, plan, RowSlice(1, target.check(BATCH, plan), 10))
    assert postgresql.execute(f"SELECT id FROM {table} ORDER BY id") == [
        (1.0,),
        (1.0,),
        (2.0,),
        (2.0,),
    ]


def test_slice_encoded_in_pieces_arrives_whole(postgresql: Server, schema: str) -> None:
    """Nulls, bits and lists on both sides of each border."""
    postgresql.execute(
        f"CREATE TABLE {schema}.t (id int, flag bool, word text, tags text[], j jsonb)"
    )
    ids = range(2 * _PIECE + 5)
    rows = [
        (
            i,
            (None, True, False)[i % 3],
            None if i % 5 == 0 else f"w{i}",
            [None, f"t{i}"][: i % 3] if i % 7 else None,
            f'{{"n": {i}}}' if i % 2 else None,
        )
        for i in ids
    ]
    types = [pa.int32(), pa.bool_(), pa.string(), pa.list_(pa.string()), pa.string()]
    arrays = [pa.array(c, t) for c, t in zip(zip(*rows, strict=True), types, strict=True)]
    batch = pa.record_batch(arrays, names=["id", "flag", "word", "tags", "j"])
    bring(target_of(postgresql, f"{schema}.t"), batch)
    stored = postgresql.execute(f"SELECT id, flag, word, tags, j::text FROM {schema}.t ORDER BY id")
    assert stored == rows


@pytest.mark.parametrize(
    "alters", ["ALTER TABLE {s}.t ADD x int", "ALTER TABLE {s}.low SET UNLOGGED"]
)
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_compared_table_cannot_be_altered_before_commit(
    postgresql: Server, schema: str, mode: str, alters: str
) -> None:
    """Also before the first row: bytes of a bigint would be other numbers in a column of doubles."""
    key = "PRIMARY KEY" if mode == "upsert" else ""
    postgresql.execute(PARTS.format(s=schema, key=key))
    target = target_of(postgresql, f"{schema}.t", mode=mode)
    plan = target.plan(BATCH.schema, "key")
    rows = RowSlice(0, target.check(BATCH, plan), 0)
    with target.connect("query") as session:
        row = create(session, "query")
        session.write(plan, rows._replace(batch=rows.batch.slice(0, 0)))
        with pytest.raises(psycopg.errors.LockNotAvailable):
            postgresql.execute(f"SET lock_timeout = '100ms'; {alters.format(s=schema)}")
        session.write(plan, rows)
        assert finish(session, row, following(row)) is Outcome.APPLIED
        postgresql.execute(alters.format(s=schema))
