"""A real server that dies, falls silent, or whose answer is lost, under the real flusher."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator

import psycopg
import pytest

from tests.postgresql.delivery import new_query, target_of
from tests.postgresql.proxy import Proxy, When
from tests.postgresql.world import PostgresqlWorld
from tests.protocol import raw
from tests.protocol.engine import SCHEMA
from wal_sink.demo.servers.postgresql import Server, downloaded_programs
from wal_sink.errors import TargetRefused, TargetUnavailable
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.base import RowSlice
from wal_sink.targets.postgresql import PostgresqlOptions, PostgresqlTarget
from wal_sink.targets.sql.session import SqlSession
from wal_sink.testing.contracts import rows as contract
from wal_sink.testing.contracts.ledger import create, finish, following
from wal_sink.testing.micro_batches import flush, until_idle

ROWS = [("a", 1), ("b", 2)]


@pytest.fixture(scope="module")
def mortal() -> Iterator[Server]:
    """Start a server that these tests kill and pause."""
    with Server() as server:
        yield server


@pytest.fixture
def mortal_schema(mortal: Server) -> str:
    name = f"test_{uuid.uuid4().hex}"
    mortal.execute(f"CREATE SCHEMA {name}")
    return name


def at_write(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[SqlSession], None], times: int = 1
) -> list[int]:
    """Do something right after rows were written and before they are committed."""
    real, done = SqlSession.write, list[int]()

    def write(self: SqlSession, plan: Plan, rows: RowSlice) -> None:
        real(self, plan, rows)
        if len(done) < times:
            done.append(rows.epoch)
            act(self)

    monkeypatch.setattr(SqlSession, "write", write)
    return done


def terminate(server: Server, session: SqlSession) -> None:
    server.execute("SELECT pg_terminate_backend(%s)", (session._connection.info.backend_pid,))


def test_server_killed_in_a_transaction_shows_nothing_of_it(
    mortal: Server, mortal_schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = PostgresqlWorld(mortal, mortal_schema)
    world.run().batch(ROWS)
    killed = at_write(monkeypatch, lambda _: mortal.kill())
    with pytest.raises(TargetUnavailable):
        until_idle(world.flusher())
    assert killed == [0]
    mortal.start()
    assert world.visible() == []
    row = world.ledger()
    assert row is not None
    assert row.epoch == -1
    flush(world.flusher())
    raw.complete(world, 1, "")
    world.end_sessions()


def test_terminated_backend_is_replaced(
    postgresql: Server, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice; the flusher tries again by itself."""
    world = PostgresqlWorld(postgresql, schema)
    world.run().batch(ROWS)
    terminated = at_write(
        monkeypatch,
        lambda session: terminate(postgresql, session),
        times=2,
    )
    flush(world.flusher())
    assert terminated == [0, 0]
    raw.complete(world, 1, "")
    world.end_sessions()


@pytest.mark.parametrize("when", ["before", "after"])
def test_lost_answer_to_commit_is_read_back(
    postgresql: Server, schema: str, monkeypatch: pytest.MonkeyPatch, when: When
) -> None:
    """The socket is cut before the server reads COMMIT, or when it has committed: rows come once."""
    outcomes: list[Outcome] = []
    real = SqlSession.finish

    with Proxy(postgresql.host, postgresql.port) as proxy:
        world = PostgresqlWorld(postgresql, schema, proxy.port)
        world.run().batch(ROWS)

        def finish(self: SqlSession, row: LedgerRow | None, new: LedgerRow) -> Outcome:
            if row is None:
                return real(self, row, new)
            if not outcomes:
                proxy.lose_commit(when)
            outcomes.append(real(self, row, new))
            return outcomes[-1]

        monkeypatch.setattr(SqlSession, "finish", finish)
        flush(world.flusher())
        assert proxy.lost == 1
        again = [] if when == "after" else [Outcome.APPLIED]
        assert outcomes == [Outcome.UNKNOWN, *again]
        raw.complete(world, 1, when)
        world.end_sessions()


def test_silent_server_is_given_up(
    mortal: Server, mortal_schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host answers, so that no time-out of TCP ends the wait."""
    world = PostgresqlWorld(mortal, mortal_schema)
    world.run().batch(ROWS)
    at_write(monkeypatch, lambda _: mortal.pause())
    began = time.monotonic()
    try:
        with pytest.raises(TargetUnavailable):
            until_idle(world.flusher())
        assert 1 < time.monotonic() - began < 60
    finally:
        mortal.resume()
    flush(world.flusher())
    raw.complete(world, 1, "")
    world.end_sessions()


def test_stalled_flusher_loses_the_ledger_row(postgresql: Server, schema: str) -> None:
    """The server ends its transaction; what it does when it wakes has no effect."""
    postgresql.execute(f"CREATE TABLE {schema}.t (k text, n int, v bigint, t text)")
    target = target_of(postgresql, f"{schema}.t", lock_timeout=5, idle_timeout=0.5)
    plan = target.plan(contract.SCHEMA, "key")
    rows = RowSlice(
        0,
        target.check(contract.arrow_batch([("a", 1, 1, "x")], contract.SCHEMA), plan),
        contract.BASE_US,
    )
    with target.connect("query") as stalled, target.connect("query") as other:
        row = create(stalled, "query")
        assert other.read() == row
        stalled.write(plan, rows)
        other.write(plan, rows)
        assert finish(other, row, following(row)) is Outcome.APPLIED
        with pytest.raises(psycopg.Error) as caught:
            finish(stalled, row, following(row))
        assert target.classify(caught.value) == "retry"
    assert postgresql.execute(f"SELECT count(*) FROM {schema}.t") == [(1,)]


def test_held_lock_is_waited_for_then_reported(postgresql: Server, schema: str) -> None:
    world = PostgresqlWorld(postgresql, schema)
    world.run().batch(ROWS)
    with psycopg.connect(postgresql.uri) as other:
        other.execute(f"LOCK TABLE {schema}.rows IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(TargetUnavailable, match="Another session holds a lock on"):
            until_idle(world.flusher())
    flush(world.flusher())
    raw.complete(world, 1, "")
    world.end_sessions()


@pytest.mark.parametrize(
    "statement",
    [
        "IF NEW.v = 2 THEN RAISE 'no two' USING ERRCODE = 'SHOP2'; END IF",
        "IF NEW.v = 2 THEN RAISE 'no two' USING ERRCODE = 'object_not_in_prerequisite_state'; END IF",
        "ASSERT NEW.v <> 2",
    ],
)
def test_row_that_a_trigger_refuses_is_quarantined(
    postgresql: Server, schema: str, statement: str
) -> None:
    """By any code of its own."""
    world = PostgresqlWorld(postgresql, schema)
    world.on_invalid_row = "quarantine"
    postgresql.execute(
        f"CREATE FUNCTION {schema}.two() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN {statement}; RETURN NEW; END $$"
    )
    postgresql.execute(
        f"CREATE TRIGGER two BEFORE INSERT ON {schema}.rows"
        f" FOR EACH ROW EXECUTE FUNCTION {schema}.two()"
    )
    world.run().batch([*ROWS, ("c", 3)])
    flush(world.flusher())
    assert sorted(world.visible()) == [("a", 1), ("c", 3)]
    world.end_sessions()


def test_row_that_only_commit_refuses_stops_the_flush(postgresql: Server, schema: str) -> None:
    """By a deferred constraint: nothing of the window stays, until the constraint takes the row."""
    world = PostgresqlWorld(postgresql, schema)
    world.on_invalid_row = "quarantine"
    postgresql.execute(
        f"CREATE FUNCTION {schema}.two() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN IF NEW.v = 2 THEN RAISE EXCEPTION 'no two'; END IF; RETURN NULL; END $$"
    )
    postgresql.execute(
        f"CREATE CONSTRAINT TRIGGER late AFTER INSERT ON {schema}.rows DEFERRABLE INITIALLY DEFERRED"
        f" FOR EACH ROW EXECUTE FUNCTION {schema}.two()"
    )
    world.run().batch([*ROWS, ("c", 3)])
    with pytest.raises(TargetRefused, match=r"COMMIT of epoch 0 is refused, .*no two"):
        until_idle(world.flusher())
    assert world.visible() == []
    postgresql.execute(f"DROP TRIGGER late ON {schema}.rows")
    flush(world.flusher())
    raw.complete(world, 1, "")
    world.end_sessions()


def test_default_that_always_fails_is_not_an_outage(postgresql: Server, schema: str) -> None:
    """A column whose default the server cannot compute: SQLSTATE 55000, of the class of locks that pass."""
    table = f"{schema}.t"
    columns = "k text UNIQUE, n int, v bigint, t text, numbered bigint DEFAULT lastval()"
    postgresql.execute(f"CREATE TABLE {table} ({columns})")
    target = target_of(postgresql, table, mode="upsert")
    plan = target.plan(contract.SCHEMA, "key")
    rows = RowSlice(
        0,
        target.check(contract.arrow_batch([("a", 1, 1, "x")], contract.SCHEMA), plan),
        contract.BASE_US,
    )
    with (
        new_query(target) as session,
        pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState) as caught,
    ):
        contract.deliver(session, plan, rows)
    assert target.classify(caught.value) == "fatal"
    passing = (psycopg.errors.LockNotAvailable(), psycopg.errors.ObjectInUse())
    assert [target.classify(error) for error in passing] == ["retry"] * 2


@pytest.mark.parametrize(("of_role", "kept"), [("off", "on"), ("remote_apply", "remote_apply")])
def test_commit_is_durable_whatever_the_role_says(
    postgresql: Server, schema: str, of_role: str, kept: str
) -> None:
    """The session sets what the log's trimming relies on; stronger settings stay."""
    role = f"role_{schema}"
    postgresql.execute(f"CREATE ROLE {role} SUPERUSER LOGIN PASSWORD 'p'")
    settings = {
        "synchronous_commit": (of_role, kept),
        "timezone": ("Asia/Tokyo", "UTC"),
        "default_transaction_isolation": ("serializable", "read committed"),
        "default_transaction_read_only": ("on", "off"),
        "statement_timeout": ("9s", "0"),
        "lock_timeout": ("9s", "10s"),
        "idle_in_transaction_session_timeout": ("9s", "1min"),
    }
    try:
        for name, (value, _) in settings.items():
            postgresql.execute(f"ALTER ROLE {role} SET {name} = '{value}'")
        uri = postgresql.uri_of(role, "p")
        with PostgresqlTarget(PostgresqlOptions(uri=uri, table="t")).open() as connection:
            for name, (_, expected) in settings.items():
                assert connection.execute(f"SHOW {name}").fetchone() == (expected,)
    finally:
        postgresql.execute(f"DROP ROLE {role}")


@pytest.mark.postgresql
def test_transaction_timeout_does_not_end_a_flush() -> None:
    """PostgreSQL 17 ends a session whose transaction takes longer than the database or the role says."""
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
        flush(world.flusher())
        assert world.visible() == ROWS[:1]
        world.end_sessions()


def test_read_only_replica_is_an_outage(mortal: Server, mortal_schema: str) -> None:
    """And passes by itself, when it has become the primary."""
    mortal.execute(f"CREATE TABLE {mortal_schema}.t (k text, v bigint)")
    mortal.stop()
    signal = mortal.data / "standby.signal"
    signal.touch()
    try:
        mortal.start()
        target = target_of(mortal, f"{mortal_schema}.t")
        with pytest.raises(TargetUnavailable, match="is a replica"):
            target.plan(SCHEMA, "key")
        mortal.execute("SELECT pg_promote()")
        assert target.plan(SCHEMA, "key").columns
    finally:
        signal.unlink(missing_ok=True)
