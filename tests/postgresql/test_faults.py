"""Faults under the real flusher: a server that hangs, lost answers, stalled flushers, refused rows."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import errors

from tests.postgresql.proxy import Proxy, When
from tests.sql.stores import Postgresql, agreed
from wal_sink.demo.postgresql import Server, downloaded_programs
from wal_sink.errors import TargetRefused, TargetUnavailable
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.base import RowSlice
from wal_sink.targets.postgresql import PostgresqlOptions, PostgresqlTarget
from wal_sink.targets.sql.session import SqlSession
from wal_sink.testing.contracts.ledger import create, finish, following
from wal_sink.testing.contracts.rows import BASE_US
from wal_sink.testing.micro_batches import PlayedQuery, flush_with_retries

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
ROWS = [("a", 1), ("b", 2)]


def pending(store: Postgresql, **options: Any) -> PlayedQuery:
    """Return a query whose epoch 0 has `ROWS` and is pending."""
    store.execute("CREATE TABLE t (k text, v bigint)")
    query = PlayedQuery(store.target(lock_timeout=0.3, request_timeout=2, **options), SCHEMA)
    query.run().batch(ROWS)
    return query


def make_trigger(store: Postgresql, event: str, body: str, kind: str = "TRIGGER") -> None:
    """Create the trigger `two`.

    :param event: when it runs, such as `BEFORE INSERT ON t`.
    :param body: statements of PL/pgSQL.
    """
    store.execute(
        f"CREATE FUNCTION two() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$;"
        f" CREATE {kind} two {event} FOR EACH ROW EXECUTE FUNCTION two()"
    )


def written(store: Postgresql) -> list[Any]:
    return store.execute("SELECT k, v FROM t ORDER BY k")


@pytest.fixture(scope="module")
def mortal() -> Iterator[Server]:
    """Start a server that tests pause and stop."""
    with Server() as server:
        yield server


@pytest.fixture
def mortal_store(mortal: Server) -> Postgresql:
    name = f"test_{uuid.uuid4().hex}"
    mortal.execute(f"CREATE SCHEMA {name}")
    return Postgresql(mortal, name)


@pytest.mark.parametrize("when", ["before", "after"])
def test_lost_answer_to_commit_is_read_back(
    store: Postgresql, monkeypatch: pytest.MonkeyPatch, when: When
) -> None:
    """Rows come once, whether the connection breaks before the server commits or after."""
    outcomes: list[Outcome] = []
    finish = SqlSession.finish

    with Proxy(store.server.host, store.server.port) as proxy:
        uri = store.url.replace(f":{store.server.port}/", f":{proxy.port}/")
        query = pending(store, uri=uri)

        def finish_and_lose(self: SqlSession, row: LedgerRow | None, new: LedgerRow) -> Outcome:
            if row is None:
                return finish(self, row, new)
            if not outcomes:
                proxy.lose_commit(when)
            outcomes.append(finish(self, row, new))
            return outcomes[-1]

        monkeypatch.setattr(SqlSession, "finish", finish_and_lose)
        flush_with_retries(query.flusher())
        assert proxy.lost == 1
        again = [] if when == "after" else [Outcome.APPLIED]
        assert outcomes == [Outcome.UNKNOWN, *again]
        assert written(store) == ROWS
        query.end_sessions()


def test_server_that_stops_answering_is_an_outage(
    mortal_store: Postgresql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's host still answers, so no time-out of TCP ends the wait."""
    query, mortal = pending(mortal_store), mortal_store.server
    write = SqlSession.write

    def write_and_pause(self: SqlSession, plan: Plan, rows: RowSlice) -> None:
        write(self, plan, rows)
        mortal.pause()

    monkeypatch.setattr(SqlSession, "write", write_and_pause)
    began_s = time.monotonic()
    try:
        with pytest.raises(TargetUnavailable):
            query.flush()
        assert 1 < time.monotonic() - began_s < 60
    finally:
        mortal.resume()
    monkeypatch.undo()
    flush_with_retries(query.flusher())
    assert written(mortal_store) == ROWS
    query.end_sessions()


def test_stalled_flusher_loses_the_ledger_row(store: Postgresql) -> None:
    """The server ends the transaction of the stalled flusher; its later calls have no effect."""
    store.execute("CREATE TABLE t (k text, v bigint)")
    target = store.target(lock_timeout=5, idle_timeout=0.5)
    plan = agreed(target, SCHEMA)
    rows = RowSlice(0, target.check(pa.record_batch([["a"], [1]], SCHEMA), plan), BASE_US)
    with target.connect("query") as stalled, target.connect("query") as other:
        row = create(stalled, "query")
        assert other.read() == row
        stalled.write(plan, rows)
        other.write(plan, rows)
        assert finish(other, row, following(row)) is Outcome.APPLIED
        with pytest.raises(psycopg.Error) as caught:
            finish(stalled, row, following(row))
        assert target.classify(caught.value) == "retry"
    assert store.execute("SELECT count(*) FROM t") == [(1,)]


@pytest.mark.parametrize(
    "statement",
    [
        "IF NEW.v = 2 THEN RAISE 'no two' USING ERRCODE = 'SHOP2'; END IF",
        "IF NEW.v = 2 THEN RAISE 'no two' USING ERRCODE = 'object_not_in_prerequisite_state'; END IF",
        "ASSERT NEW.v <> 2",
    ],
)
def test_row_that_a_trigger_refuses_is_quarantined(store: Postgresql, statement: str) -> None:
    """The trigger may use any SQLSTATE."""
    query = pending(store)
    query.on_invalid_row = "quarantine"
    make_trigger(store, "BEFORE INSERT ON t", f"{statement}; RETURN NEW;")
    query.flush()
    assert written(store) == ROWS[:1]


def test_row_that_only_commit_refuses_stops_the_flush(store: Postgresql) -> None:
    """A deferred constraint refuses the row. After the constraint is dropped, the flush continues."""
    query = pending(store)
    query.on_invalid_row = "quarantine"
    make_trigger(
        store,
        "AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED",
        "IF NEW.v = 2 THEN RAISE EXCEPTION 'no two'; END IF; RETURN NULL;",
        "CONSTRAINT TRIGGER",
    )
    with pytest.raises(TargetRefused, match=r"COMMIT of epoch 0 is refused, .*no two"):
        query.flush()
    assert written(store) == []
    store.execute("DROP TRIGGER two ON t")
    query.flush()
    assert written(store) == ROWS


@pytest.mark.parametrize(
    ("error", "error_class"),
    [
        (errors.LockNotAvailable, "retry"),
        (errors.ObjectInUse, "retry"),
        (errors.ObjectNotInPrerequisiteState, "fatal"),  # such as for a default that fails
    ],
)
def test_error_of_class_55_is_classified_by_its_sqlstate(
    error: type[Exception], error_class: str
) -> None:
    target = PostgresqlTarget(PostgresqlOptions(uri="postgresql://db/shop", table="t"))
    assert target.classify(error()) == error_class


@pytest.mark.parametrize(("of_role", "kept"), [("off", "on"), ("remote_apply", "remote_apply")])
def test_settings_of_the_role_do_not_weaken_a_session(
    store: Postgresql, user: str, of_role: str, kept: str
) -> None:
    """Each session sets what the sink relies on, and keeps a stronger setting of the role."""
    settings = {
        "synchronous_commit": (of_role, kept),
        "timezone": ("Asia/Tokyo", "UTC"),
        "default_transaction_isolation": ("serializable", "read committed"),
        "default_transaction_read_only": ("on", "off"),
        "statement_timeout": ("9s", "0"),
        "lock_timeout": ("9s", "1s"),
        "idle_in_transaction_session_timeout": ("9s", "1min"),
    }
    for name, (value, _) in settings.items():
        store.execute(f"ALTER ROLE {user} SET {name} = '{value}'")
    with store.target(uri=store.server.uri_of(user, "p")).open() as connection:
        for name, (_, expected) in settings.items():
            assert connection.execute(f"SHOW {name}").fetchone() == (expected,)


@pytest.mark.postgresql
def test_transaction_timeout_does_not_end_a_flush() -> None:
    """The setting came with PostgreSQL 17: the server ends a session whose transaction takes longer."""
    with Server(folder=downloaded_programs()) as server:
        store = Postgresql(server, "public")
        query = pending(store)
        server.execute("ALTER DATABASE postgres SET transaction_timeout = '1s'")
        make_trigger(store, "BEFORE INSERT ON t", "PERFORM pg_sleep(0.75); RETURN NEW;")
        query.flush()
        assert written(store) == ROWS


def test_read_only_replica_is_an_outage(mortal_store: Postgresql) -> None:
    """The outage ends when the replica becomes the primary."""
    store, mortal = mortal_store, mortal_store.server
    store.execute("CREATE TABLE t (k text, v bigint)")
    mortal.stop()
    signal = mortal.data / "standby.signal"
    signal.touch()
    try:
        mortal.start()
        with pytest.raises(TargetUnavailable, match="is a replica"):
            agreed(store.target(), SCHEMA)
        mortal.execute("SELECT pg_promote()")
        assert agreed(store.target(), SCHEMA).columns
    finally:
        signal.unlink(missing_ok=True)
