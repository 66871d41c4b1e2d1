"""Tables of PostgreSQL: which tables a start refuses, with a remedy that works; and which it accepts."""

from __future__ import annotations

import logging
import re
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tests.sql.stores import Postgresql, agreed, bring, new_query
from tests.support.transcripts import transcript
from wal_sink.errors import (
    OptionError,
    SchemaMismatch,
    TargetRefused,
    TargetUnavailable,
    WalSinkError,
)
from wal_sink.model.ledger import Outcome
from wal_sink.targets.base import RowSlice, RowsRefused
from wal_sink.targets.postgresql.catalogue import PostgresqlCatalogue
from wal_sink.targets.postgresql.write import _PIECE
from wal_sink.targets.sql.catalogue import Unique
from wal_sink.testing.contracts.ledger import create, finish, following, row_of
from wal_sink.testing.contracts.rows import deliver, write_all

BATCH = pa.record_batch([pa.array([1, 2], pa.int64()), pa.array(["a", "b"])], names=["id", "v"])
TABLE = "CREATE TABLE t (id bigint, v text)"
PARTS = (
    "CREATE TABLE t (id bigint {key}, v text) PARTITION BY RANGE (id);"
    " CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (2);"
    " CREATE TABLE high PARTITION OF t DEFAULT"
)


def refused(store: Postgresql, **options: Any) -> WalSinkError:
    """Return the error of a start."""
    with pytest.raises(WalSinkError) as caught:
        store.target(**options).plan(BATCH.schema, "key")
    return caught.value


def remedied(store: Postgresql, error: WalSinkError, **options: Any) -> None:
    """Run the statements of the remedy; then rows arrive."""
    for statement in re.findall(r"(?:ALTER|CREATE|DROP|GRANT)\b.*?;", error.remedy, re.DOTALL):
        store.execute(statement)
    bring(store.target(**options), BATCH)
    table = options.get("table", "t")
    assert store.execute(f"SELECT id, v FROM {table} ORDER BY id") == [(1, "a"), (2, "b")]


# --- tables that a start refuses ---


@pytest.mark.parametrize(
    ("table", "is_similar"), [(".order", True), ("x.orders", True), ("x.order", False)]
)
def test_error_of_missing_table_suggests_a_name(
    store: Postgresql, table: str, *, is_similar: bool
) -> None:
    """A table of another schema is suggested only if it has the same name."""
    store.execute("CREATE TABLE orders (id bigint)")
    error = refused(store, table=f"{store.schema}{table}")
    assert (f"Did you mean {store.schema}.orders?" in error.what) is is_similar


def test_error_shows_a_refused_row_once(store: Postgresql) -> None:
    """The server's own text about NOT NULL and CHECK has the whole row, too."""
    store.execute("CREATE TABLE t (id bigint, v text)")
    target = store.target()
    plan = target.plan(BATCH.schema, "key")
    store.execute("ALTER TABLE t ADD CONSTRAINT short CHECK (length(v) < 3)")
    batch = pa.record_batch([[1, 2], ["a", "long text"]], names=["id", "v"])
    with target.connect("query") as session:
        create(session, "query")
        with pytest.raises(RowsRefused) as caught:
            deliver(session, plan, RowSlice(0, target.check(batch, plan), 1))
    (row,) = caught.value.rows
    assert row.error.what.count("long text") == 1
    assert "short" in row.error.what


def test_default_partition_of_a_long_name_is_created(store: Postgresql) -> None:
    """The name of a table has at most 63 bytes, and PostgreSQL cuts a longer name."""
    name = "ä" * 31 + "x"
    target = store.target(table=name, create_table=True, partition_columns="id")
    target.plan(BATCH.schema, "key")
    assert store.execute(
        "SELECT relname FROM pg_class WHERE relname LIKE '%default' AND relispartition"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "upsert"}, "needs a key"),
        ({"key_columns": "id"}, "second row of a key"),
        ({"mode": "upsert", "key_columns": "id,id"}, "has 'id' twice"),
        ({"create_table": False, "key_columns": "id"}, "keyColumns is given without createTable"),
        ({"create_table": False, "partition_columns": "v"}, "partitionColumns"),
        ({"mode": "upsert", "key_columns": "iid"}, "Did you mean id"),
        (
            {"mode": "upsert", "key_columns": "id", "partition_columns": "v"},
            "must include all partitioning columns",
        ),
    ],
)
def test_table_that_cannot_be_made_is_refused(
    store: Postgresql, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(WalSinkError, match=words):
        store.target(**{"create_table": True} | options).plan(BATCH.schema, "key")
    assert store.execute("SELECT to_regclass('t')") == [(None,)]


@pytest.mark.parametrize(
    ("ddl", "words"),
    [
        ("CREATE MATERIALIZED VIEW t AS SELECT 1::bigint AS id", "a view"),
        (
            "CREATE TABLE t (id bigint, v text) PARTITION BY RANGE (id);"  # noqa: ISC004
            " CREATE TABLE p PARTITION OF t DEFAULT PARTITION BY RANGE (id);"
            " CREATE UNLOGGED TABLE q PARTITION OF p DEFAULT",
            "q is unlogged",
        ),
        (f"{TABLE}; CREATE UNIQUE INDEX u ON t (lower(v))", "is unique by u"),
        (f"{TABLE}; CREATE UNLOGGED TABLE wal_sink_ledger (x int)", "is unlogged"),
    ],
)
def test_table_not_written_exactly_once_is_refused(store: Postgresql, ddl: str, words: str) -> None:
    store.execute(ddl)
    assert words in refused(store).what


@pytest.mark.parametrize(
    "ddl",
    [
        TABLE.replace("TABLE", "UNLOGGED TABLE"),
        f"{TABLE}; CREATE RULE r AS ON INSERT TO t DO INSTEAD NOTHING",  # would drop rows of an upsert
    ],
)
def test_remedy_of_a_refused_table_works(store: Postgresql, ddl: str) -> None:
    store.execute(ddl)
    remedied(store, refused(store))


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_unique_index_of_one_partition_is_refused(store: Postgresql, mode: str) -> None:
    """An index that all partitions have is one index of the table."""
    key = "PRIMARY KEY" if mode == "upsert" else ""
    store.execute(f"{PARTS.format(key=key)}; CREATE UNIQUE INDEX u ON high (v)")
    error = refused(store, mode=mode)
    assert f"u of {store.schema}.high" in error.what
    store.execute("DROP INDEX u")
    remedied(store, error, mode=mode)


def test_published_table_without_replica_identity_is_refused(store: Postgresql) -> None:
    """The server would refuse each window."""
    publication = f"p_{store.schema}"
    store.execute("CREATE TABLE t (id bigint UNIQUE, v text)")
    store.execute(f"CREATE PUBLICATION {publication} FOR TABLE t")
    try:
        error = refused(store, mode="upsert")
        assert "does not have a replica identity" in error.what
        assert "set REPLICA IDENTITY using ALTER TABLE" in error.what
    finally:
        store.execute(f"DROP PUBLICATION {publication}")


def test_foreign_table_is_refused(store: Postgresql) -> None:
    """A start and a session refuse the table, also if only a partition is a foreign table."""
    wrapper, server = f"fdw_{store.schema}", f"server_{store.schema}"
    store.execute(f"CREATE FOREIGN DATA WRAPPER {wrapper}")
    store.execute(f"CREATE SERVER {server} FOREIGN DATA WRAPPER {wrapper}")
    try:
        store.execute(f"CREATE FOREIGN TABLE f (id bigint, v text) SERVER {server}")
        assert "a foreign table" in refused(store, table="f").what
        store.execute(f"{TABLE} PARTITION BY RANGE (id)")
        target = store.target()
        plan = agreed(target, BATCH.schema)
        store.execute(
            f"CREATE FOREIGN TABLE part PARTITION OF t FOR VALUES FROM (0) TO (9) SERVER {server}"
        )
        with (
            new_query(target) as session,
            pytest.raises(SchemaMismatch, match=r"\.part is a view or a foreign table"),
        ):
            deliver(session, plan, RowSlice(0, target.check(BATCH, plan), 0))
        assert f"{store.schema}.part" in refused(store).what
    finally:
        store.execute(f"DROP FOREIGN DATA WRAPPER {wrapper} CASCADE")


def test_ledger_that_counts_only_changed_rows_is_refused(store: Postgresql) -> None:
    """A trigger lets PostgreSQL count only changed rows, as MySQL does by default."""
    store.execute(TABLE)
    agreed(store.target(), BATCH.schema)
    store.execute(
        "CREATE TRIGGER z BEFORE UPDATE ON wal_sink_ledger"
        " FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()"
    )
    error = refused(store)
    assert "has the rowcount 0" in error.what
    assert "count the rows that are found" in error.remedy


# --- tables that change under a session ---


@pytest.mark.parametrize("relation", ["t", "low", "high", "wal_sink_ledger"])
def test_table_made_unlogged_takes_no_rows(store: Postgresql, relation: str) -> None:
    """The session has already written to the table."""
    store.execute(TABLE if relation == "t" else PARTS.format(key=""))
    target = store.target()
    plan = agreed(target, BATCH.schema)
    low, high = (RowSlice(0, target.check(BATCH.slice(i, 1), plan), 0) for i in range(2))
    with target.connect("query") as session:
        create(session, "query")
        deliver(session, plan, low, high)
        row = row_of(session)
        store.execute(f"ALTER TABLE {relation} SET UNLOGGED")
        with pytest.raises(SchemaMismatch, match=rf"{relation} is unlogged") as caught:
            write_all(session, [(plan, low), (plan, high)], row)
    with target.connect("query") as session:
        assert session.read() == row
        assert store.execute("SELECT count(*) FROM t") == [(2,)]
        for statement in re.findall(r"ALTER\b.*?;", caught.value.remedy):
            store.execute(statement)
        deliver(session, plan, low)


@pytest.mark.parametrize("alter", ["ALTER TABLE t ADD x int", "ALTER TABLE low SET UNLOGGED"])
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_compared_table_cannot_be_altered_before_commit(
    store: Postgresql, mode: str, alter: str
) -> None:
    """The session locks it before the first row. Otherwise COPY could read a bigint as another type."""
    ddl = PARTS if "low" in alter else "CREATE TABLE t (id bigint {key}, v text)"
    store.execute(ddl.format(key="PRIMARY KEY" if mode == "upsert" else ""))
    target = store.target(mode=mode)
    plan = agreed(target, BATCH.schema)
    rows = RowSlice(0, target.check(BATCH, plan), 0)
    with target.connect("query") as session:
        row = create(session, "query")
        session.write(plan, rows._replace(batch=BATCH.slice(0, 0)))
        with pytest.raises(psycopg.errors.LockNotAvailable):
            store.execute(f"SET lock_timeout = '100ms'; {alter}")
        session.write(plan, rows)
        assert finish(session, row, following(row)) is Outcome.APPLIED
        store.execute(alter)


def test_locked_table_delays_no_start(store: Postgresql) -> None:
    """CREATE INDEX takes such a lock."""
    store.execute(TABLE)
    with psycopg.connect(store.url) as other:
        other.execute(f"LOCK TABLE {store.schema}.t IN SHARE MODE")
        assert store.target(lock_timeout=0.1).plan(BATCH.schema, "key").columns


# --- privileges ---


def test_grant_on_some_columns_is_not_enough(store: Postgresql, user: str) -> None:
    """COPY needs the privilege for each column of the DataFrame, and for no other."""
    store.execute(
        f"CREATE TABLE t (id bigint, v text, other int); GRANT INSERT (id) ON t TO {user};"
        f" GRANT USAGE, CREATE ON SCHEMA {store.schema} TO {user}"
    )
    target = store.target(uri=store.server.uri_of(user, "p"))
    with pytest.raises(TargetRefused, match=r"permission denied for table t"):
        target.plan(BATCH.schema, "key")
    store.execute(f"GRANT INSERT (v) ON t TO {user}")
    bring(target, BATCH)
    assert store.execute("SELECT count(*) FROM t") == [(2,)]


def test_error_of_a_failed_connection_names_its_cause(
    store: Postgresql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable with the password is read at each connection."""
    store.execute(TABLE)
    server, variable = store.server, "WAL_SINK_POSTGRESQL_PASSWORD"
    target = store.target(uri=server.uri_of("postgres"))
    monkeypatch.setenv(variable, "wrong")
    with pytest.raises(OptionError) as caught:
        target.plan(BATCH.schema, "key")
    text = str(caught.value).replace(str(server.port), "5432")
    assert f"wal_sink.errors.OptionError: {text}\n" == transcript("wrong password")
    elsewhere = server.uri_of("postgres", server.password, "nowhere")
    assert "has no such database" in refused(store, uri=elsewhere).what
    monkeypatch.setenv(variable, server.password)
    assert target.plan(BATCH.schema, "key").table == f'"{store.schema}"."t"'
    monkeypatch.delenv(variable)
    assert "colour" in refused(store, uri=f"{server.uri}?colour=red").what
    away = refused(store, uri="postgresql://u:hush@127.0.0.1:1/d")
    assert isinstance(away, TargetUnavailable)
    assert "hush" not in str(away)


# --- tables that a start accepts ---


@pytest.mark.parametrize(
    "ddl",
    [
        PARTS.format(key=""),
        "CREATE TABLE t (n bigserial PRIMARY KEY, id bigint, v text)",
        "CREATE TABLE t (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id bigint, v text)",
        "CREATE TABLE t (id bigint, l int GENERATED ALWAYS AS (length(v)) STORED, v text)",
        "CREATE DOMAIN label AS varchar(10) NOT NULL; CREATE TABLE t (v label, id bigint)",
        "CREATE TABLE t (gone int, id bigint, v text); ALTER TABLE t DROP COLUMN gone",
    ],
)
def test_tables_of_many_kinds_take_rows(store: Postgresql, ddl: str) -> None:
    store.execute(ddl)
    bring(store.target(), BATCH)
    assert store.execute("SELECT id, v FROM t ORDER BY id") == [(1, "a"), (2, "b")]


def test_catalogue_returns_columns_and_unique_constraints(store: Postgresql) -> None:
    store.execute(
        "CREATE DOMAIN inner_ AS numeric(10,2) CHECK (VALUE > 0);"
        " CREATE DOMAIN outer_ AS inner_ NOT NULL DEFAULT 1;"
        " CREATE TABLE t (a int PRIMARY KEY, b outer_, c timestamptz(3) DEFAULT now(),"
        " d varchar(7)[], CHECK (a > 0));"
        " CREATE UNIQUE INDEX partly ON t (c) INCLUDE (d) WHERE a > 5"
    )
    with store.target().open() as connection:
        catalogue = PostgresqlCatalogue(connection, store.target().options, str)
        columns, unique = catalogue.columns(), catalogue.unique()
    assert [column[:4] for column in columns] == [
        ("a", "integer", True, False),
        ("b", "numeric(10,2)", True, True),
        ("c", "timestamp(3) with time zone", False, True),
        ("d", "character varying(7)[]", False, False),
    ]
    assert unique == [
        Unique("t_pkey", ("a",)),
        Unique("partly", ("c",), plain=False),
    ]


def test_start_warns_of_triggers(store: Postgresql, caplog: pytest.LogCaptureFixture) -> None:
    """The table has a trigger, and its partition another one."""
    store.execute(PARTS.format(key=""))
    store.execute(
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
        " CREATE TRIGGER whole AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION f();"
        " CREATE TRIGGER drops BEFORE INSERT ON low FOR EACH ROW EXECUTE FUNCTION f()"
    )
    with caplog.at_level(logging.WARNING):
        agreed(store.target(), BATCH.schema)
    assert "triggers (drops, whole)" in caplog.text


def test_slice_encoded_in_pieces_arrives_whole(store: Postgresql) -> None:
    """Nulls, bits and lists are on both sides of each border of a piece."""
    store.execute("CREATE TABLE t (id int, flag bool, word text, tags text[], j jsonb)")
    rows = [
        (
            i,
            (None, True, False)[i % 3],
            None if i % 5 == 0 else f"w{i}",
            [None, f"t{i}"][: i % 3] if i % 7 else None,
            f'{{"n": {i}}}' if i % 2 else None,
        )
        for i in range(2 * _PIECE + 5)
    ]
    types = [pa.int32(), pa.bool_(), pa.string(), pa.list_(pa.string()), pa.string()]
    arrays = [pa.array(c, t) for c, t in zip(zip(*rows, strict=True), types, strict=True)]
    bring(store.target(), pa.record_batch(arrays, names=["id", "flag", "word", "tags", "j"]))
    assert store.execute("SELECT id, flag, word, tags, j::text FROM t ORDER BY id") == rows
