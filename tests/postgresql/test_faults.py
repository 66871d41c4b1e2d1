"""Faults under the real flusher: a server that hangs, lost answers, stalled flushers, refused rows."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import psycopg
import pyarrow as pa
import pytest
from psycopg import errors

from tests.postgresql.proxy import Proxy, When
from tests.postgresql.world import PostgresqlWorld
from tests.protocol import raw
from tests.protocol.engine import SCHEMA
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
from wal_sink.testing.micro_batches import flush_with_retries, until_idle

ROWS = [("a", 1), ("b", 2)]


@pytest.fixture
def world(store: Postgresql) -> Iterator[PostgresqlWorld]:
    """Make a query whose epoch 0 has `ROWS` and is pending."""
    world = PostgresqlWorld(store.server, store.schema)
    world.run().batch(ROWS)
    yield world
    world.end_sessions()


@pytest.fixture(scope="module")
def mortal() -> Iterator[Server]:
    """Start a server that tests pause and stop."""
    with Server() as server:
        yield server


@pytest.fixture
def mortal_schema(mortal: Server) -> str:
    name = f"test_{uuid.uuid4().hex}"
    mortal.execute(f"CREATE SCHEMA {name}")
    return name


@pytest.mark.parametrize("when", ["before", "after"])
def test_lost_answer_to_commit_is_read_back(
    store: Postgresql, monkeypatch: pytest.MonkeyPatch, when: When
) -> None:
    """Rows come once, whether the connection breaks before the server commits or after."""
    outcomes: list[Outcome] = []
    finish = SqlSession.finish

    with Proxy(store.server.host, store.server.port) as proxy:
        world = PostgresqlWorld(store.server, store.schema, proxy.port)
        world.run().batch(ROWS)

        def finish_and_lose(self: SqlSession, row: LedgerRow | None, new: LedgerRow) -> Outcome:
            if row is None:
                return finish(self, row, new)
            if not outcomes:
                proxy.lose_commit(when)
            outcomes.append(finish(self, row, new))
            return outcomes[-1]

        monkeypatch.setattr(SqlSession, "finish", finish_and_lose)
        flush_with_retries(world.flusher())
        assert proxy.lost == 1
        again = [] if when == "after" else [Outcome.APPLIED]
        assert outcomes == [Outcome.UNKNOWN, *again]
        raw.complete(world, 1, when)
        world.end_sessions()


def test_server_that_stops_answering_is_an_outage(
    mortal: Server, mortal_schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's host still answers, so no time-out of TCP ends the wait."""
    world = PostgresqlWorld(mortal, mortal_schema)
    world.run().batch(ROWS)
    write = SqlSession.write

    def write_and_pause(self: SqlSession, plan: Plan, rows: RowSlice) -> None:
        write(self, plan, rows)
        mortal.pause()

    monkeypatch.setattr(SqlSession, "write", write_and_pause)
    began_s = time.monotonic()
    try:
        with pytest.raises(TargetUnavailable):
            until_idle(world.flusher())
        assert 1 < time.monotonic() - began_s < 60
    finally:
        mortal.resume()
    monkeypatch.undo()
    flush_with_retries(world.flusher())
    raw.complete(world, 1, "")
    world.end_sessions()


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
def test_row_that_a_trigger_refuses_is_quarantined(world: PostgresqlWorld, statement: str) -> None:
    """The trigger may use any SQLSTATE."""
    world.on_invalid_row = "quarantine"
    world.refuse_two(f"BEFORE INSERT ON {world.rows_table}", f"{statement}; RETURN NEW;")
    flush_with_retries(world.flusher())
    assert world.visible() == ROWS[:1]


def test_row_that_only_commit_refuses_stops_the_flush(world: PostgresqlWorld) -> None:
    """A deferred constraint refuses the row. After the constraint is dropped, the flush continues."""
    world.on_invalid_row = "quarantine"
    world.refuse_two(
        f"AFTER INSERT ON {world.rows_table} DEFERRABLE INITIALLY DEFERRED",
        "IF NEW.v = 2 THEN RAISE EXCEPTION 'no two'; END IF; RETURN NULL;",
        "CONSTRAINT TRIGGER",
    )
    with pytest.raises(TargetRefused, match=r"COMMIT of epoch 0 is refused, .*no two"):
        until_idle(world.flusher())
    assert world.visible() == []
    world.server.execute(f"DROP TRIGGER two ON {world.rows_table}")
    flush_with_retries(world.flusher())
    raw.complete(world, 1, "")


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
        world = PostgresqlWorld(server, "public")
        run = world.run()
        server.execute("ALTER DATABASE postgres SET transaction_timeout = '1s'")
        server.execute(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN PERFORM pg_sleep(1.5); RETURN NEW; END';"
            "CREATE TRIGGER slow BEFORE INSERT ON rows FOR EACH ROW EXECUTE FUNCTION slow()"
        )
        run.batch(ROWS[:1])
        flush_with_retries(world.flusher())
        assert world.visible() == ROWS[:1]
        world.end_sessions()


def test_read_only_replica_is_an_outage(mortal: Server, mortal_schema: str) -> None:
    """The outage ends when the replica becomes the primary."""
    store = Postgresql(mortal, mortal_schema)
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
