"""Outages under an open session: a node that stalls, dies and comes back."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from tests.support.cassandra import options_of
from wal_sink.demo.cassandra import EmbeddedCassandra
from wal_sink.errors import TargetUnavailable
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.base import IdempotentSession, RowSlice, Session, Target
from wal_sink.targets.cassandra import CassandraOptions, CassandraTarget
from wal_sink.targets.cassandra.driver.connection import Connection, connect
from wal_sink.targets.cassandra.ledger import Ledger
from wal_sink.targets.cassandra.session import CassandraSession
from wal_sink.targets.cassandra.table_changes import TableWatch
from wal_sink.telemetry import FlushMetrics, counting_requests
from wal_sink.testing.contracts import RestartContract
from wal_sink.testing.contracts.ledger import Stored, create, finish, first_row, following, row_of
from wal_sink.testing.contracts.rows import SCHEMA as CONTRACT_SCHEMA

pytestmark = pytest.mark.cassandra

SCHEMA = pa.schema([("id", pa.int32()), ("v", pa.string())])
US = 1_700_000_000_000_000


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedCassandra]:
    """A node that tests pause and kill."""
    with EmbeddedCassandra() as node:
        node.create_keyspace("ks")
        node.execute("CREATE TABLE ks.t (id int PRIMARY KEY, v text)")
        CassandraTarget(options(node)).plan(SCHEMA, "k")  # makes the ledger's table
        yield node


def options(node: EmbeddedCassandra, more: Mapping[str, str] = {}) -> CassandraOptions:
    return options_of(node, "ks", **{"cassandra.requestTimeout": "1", **more})


@pytest.fixture
def target(node: EmbeddedCassandra) -> CassandraTarget:
    """A target that waits for an answer for a second."""
    return CassandraTarget(options(node))


@pytest.fixture
def plan(target: CassandraTarget) -> Plan:
    """The plan, made while the node is up."""
    return target.plan(SCHEMA, "k")


class Retries(FlushMetrics):
    """Counts the requests that are sent again, by error class."""

    def __init__(self) -> None:
        self.retries: Counter[str] = Counter()

    def retried(self, kind: str) -> None:
        self.retries[kind] += 1


@pytest.fixture
def metrics() -> Retries:
    """The metrics of `session`."""
    return Retries()


@pytest.fixture
def session(target: CassandraTarget, plan: Plan, metrics: Retries) -> Iterator[IdempotentSession]:
    """A session of a new query, with all statements prepared."""
    query_id = uuid.uuid4().hex
    with counting_requests(metrics), target.connect(query_id) as session:
        current = create(session, query_id)
        assert finish(session, following(current), following(current)) is Outcome.CONFLICT
        yield session


def rows(target: CassandraTarget, plan: Plan, count: int, first: int = 0) -> RowSlice:
    ids = pa.array(range(first, first + count), pa.int32())
    batch = pa.record_batch({"id": ids, "v": [f"v{i}" for i in range(count)]})
    return RowSlice(0, target.check(batch, plan), US)


def write(session: IdempotentSession, plan: Plan, *slices: RowSlice) -> None:
    for item in slices:
        session.write(plan, item)
    session.drain()


def eventually(session: Session, expected: LedgerRow, seconds: float = 30) -> LedgerRow:
    """Read until the row is the expected one, or time is up."""
    deadline = time.monotonic() + seconds
    while True:
        row = session.read()
        if row == expected or time.monotonic() > deadline:
            assert row is not None
            return row
        time.sleep(0.1)


def test_lost_answer_is_unknown_until_a_read(node: EmbeddedCassandra, session: Session) -> None:
    current = row_of(session)
    new = following(current)
    node.pause()
    try:
        assert finish(session, current, new) is Outcome.UNKNOWN
    finally:
        node.resume()
    assert eventually(session, new) == new
    assert finish(session, current, following(current)) is Outcome.CONFLICT


def test_rows_arrive_after_the_node_stalls(
    node: EmbeddedCassandra,
    session: IdempotentSession,
    metrics: Retries,
    target: CassandraTarget,
    plan: Plan,
) -> None:
    slices = [rows(target, plan, 500, first) for first in range(0, 20_000, 500)]
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write, session, plan, *slices)
        while not (metrics.in_flight or writing.done()):
            time.sleep(0.001)
        node.pause()
        time.sleep(0.5)
        stuck = metrics.in_flight
        time.sleep(2)
        node.resume()
        writing.result(120)
    assert stuck > 0
    assert metrics.in_flight == 0
    assert metrics.retries["retry"] > 0
    got = node.execute("SELECT id, v, writetime(v) AS us FROM ks.t")
    assert {(row.id, row.v, row.us) for row in got} == {
        (i, f"v{i % 500}", US + i % 500) for i in range(20_000)
    }


def test_schema_version_is_read_from_a_connected_node(
    node: EmbeddedCassandra,
) -> None:
    with connect(options(node)) as connection:
        _, asked = TableWatch(connection.session, options(node).data)._schema_version()
        assert asked in connection.session.get_pool_state()


def test_stalled_node_is_marked_down(node: EmbeddedCassandra) -> None:
    """No request need be in flight: a full socket to the node would stop all writes."""
    with connect(options(node)) as connection:
        (host,) = connection.session.get_pool_state()
        node.pause()
        try:
            until = time.monotonic() + 40
            while host.is_up:
                assert time.monotonic() < until
                time.sleep(0.1)
        finally:
            node.resume()


def test_overloaded_node_slows_the_flush() -> None:
    """The node accepts 40 requests a second, and 64 at once would all time out."""
    settings = {
        "native_transport_rate_limiting_enabled": True,
        "native_transport_max_requests_per_second": 40,
    }
    with EmbeddedCassandra(settings=settings) as slow:
        slow.create_keyspace("ks")
        slow.execute("CREATE TABLE ks.t (id int PRIMARY KEY, v text)")
        target = CassandraTarget(options(slow))
        plan = target.plan(SCHEMA, "k")
        with target.connect("q") as session:
            begin = time.monotonic()
            write(
                session, plan, *(rows(target, plan, 500, first) for first in range(0, 1_500, 500))
            )
            took = time.monotonic() - begin
            assert isinstance(session, CassandraSession)
            assert session._concurrency.limit < 40
        assert took > 2, "the node did hold it up"
        assert slow.execute("SELECT count(*) AS n FROM ks.t")[0].n == 1_500


@pytest.fixture
def standstill() -> Iterator[threading.Event]:
    """An event: the driver's thread stalls in a callback until it is set."""
    over = threading.Event()
    yield over
    over.set()


def stand_still(connection: Connection, over: threading.Event) -> None:
    """Stall the driver's thread, which handles answers and timeouts."""
    reached, caller = threading.Event(), threading.get_ident()

    def wait(_rows: object) -> None:
        if threading.get_ident() == caller:
            return  # the answer had come already, and the driver calls back at once
        reached.set()
        over.wait()

    for _ in range(30):
        connection.session.execute_async("SELECT id FROM ks.t").add_callback(wait)
        if reached.wait(1):
            return
    raise AssertionError("each answer came before its callback was added")


class Restarted(RestartContract):
    """The contract of a server's restart."""

    def __init__(self, node: EmbeddedCassandra) -> None:
        self._node = node

    def records(self, target: Target) -> list[Stored]:
        return self._node.execute("SELECT k, n, v, t, d FROM ks.restarted")

    def restart(self, target: Target) -> None:
        self._node.kill()
        self._node.start()


def test_node_restart_keeps_whole_windows(node: EmbeddedCassandra) -> None:
    node.execute(
        "CREATE TABLE ks.restarted (k text, n int, v bigint, t text, d double, PRIMARY KEY (k, n))"
    )
    target = CassandraTarget(
        options(node, {"table": "restarted", "cassandra.requestTimeout": "10"})
    )
    plan = target.plan(CONTRACT_SCHEMA, "k")
    Restarted(node).test_restart_of_the_server_keeps_whole_windows(target, plan)


def test_stalled_driver_thread_is_an_outage_for_the_ledger(
    node: EmbeddedCassandra, standstill: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The effect of an update is unknown, and a read raises an outage."""
    monkeypatch.setattr("wal_sink.targets.cassandra.driver.requests._TIMER_MAY_LAG_S", 0.0)
    chosen, query_id = options(node), f"q-{uuid.uuid4()}"
    with connect(chosen) as connection:
        ledger = Ledger(connection.session, chosen.ledger, query_id, timeout_s=2)
        current = first_row(query_id)
        assert ledger.compare_and_set(None, current) is Outcome.APPLIED
        new = following(current)
        assert ledger.compare_and_set(current, new) is Outcome.APPLIED
        stand_still(connection, standstill)
        began = time.monotonic()
        assert ledger.compare_and_set(new, following(new)) is Outcome.UNKNOWN
        with pytest.raises(TargetUnavailable, match="cannot be read"):
            ledger.read()
        assert time.monotonic() - began < 30
        standstill.set()
