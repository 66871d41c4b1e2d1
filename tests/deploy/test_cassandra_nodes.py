"""Three Cassandra nodes with three replicas, and faults of nodes and network during a flush.

`tests.protocol.engine` plays Spark, and kills its driver between publish and commit. The table must have no
rows of such attempts.
"""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from cassandra import ConsistencyLevel
from cassandra.query import SimpleStatement

from state_backends import open_backend
from tests.deploy.cassandra_nodes import REPLICATION, CassandraCluster, ClusterNode, until
from tests.protocol.engine import SCHEMA, World
from tests.support.deploy_table import Counted, Row
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.demo.cassandra import VERSION
from wal_sink.flush.flusher import Flusher
from wal_sink.flush.loop import FlushLoop
from wal_sink.flush.reporter import Reporter
from wal_sink.options import parse
from wal_sink.progress.status import Status, read_status
from wal_sink.targets.cassandra import CassandraOptions, CassandraTarget

pytestmark = [pytest.mark.test_all, pytest.mark.cassandra, pytest.mark.timeout(900)]

NEW, HOT = 60, 10
"""Rows of an epoch with new keys, and with keys that every epoch has."""
_numbers = itertools.count()


class Stream:
    """A query that runs without pauses, and its flusher.

    :param replication: of the keyspace.

    :param options: more options of the target.
    """

    def __init__(
        self,
        cluster: CassandraCluster,
        folder: Path,
        *,
        replication: str = REPLICATION,
        options: Mapping[str, str] = {},
    ) -> None:
        self.keyspace = f"ks{next(_numbers)}"
        self._node = cluster.nodes[0]
        self._node.execute(f"CREATE KEYSPACE {self.keyspace} WITH replication = {replication}")
        self.ddl = f"CREATE TABLE {self.keyspace}.t (k text PRIMARY KEY, v bigint)"
        self._node.execute(self.ddl)
        raw = {
            "keyspace": self.keyspace,
            "table": "t",
            "cassandra.contactPoints": cluster.contact_points,
            "cassandra.port": str(cluster.port),
            "cassandra.requestTimeout": "8",
            **options,
        }
        # The plan makes the ledger table, which is slow on a busy machine. It is refused while a node shows
        # an old version of the schema, after its clock was ahead.
        patient = parse(raw | {"cassandra.requestTimeout": "60"}, CassandraOptions)
        until(lambda: CassandraTarget(patient).plan(SCHEMA, "k") is not None)
        self.world = World(
            open_backend(str(folder / self.keyspace / "checkpoint")),
            open_backend(str(folder / self.keyspace / "log")),
            CassandraTarget(parse(raw, CassandraOptions)),
        )
        self.world.on_invalid_row = "quarantine"
        self._ended = threading.Event()
        self._spark = threading.Thread(target=self._run, name=f"spark {self.keyspace}")
        self._failed: BaseException | None = None

    def __enter__(self) -> Stream:
        self._tick()
        self._first = self.world.run()
        pipeline = self.world.flusher().pipeline
        reporter = Reporter(self.world.log_backend, pipeline.target_name, self.world.clock)
        self.loop = FlushLoop(Flusher(pipeline, reporter, clock_us=self.world.clock))
        self.loop.start()
        self._spark.start()
        self.goes_on()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._spark.join(60)
        self.loop.stop()
        self.loop.join(60)

    def _tick(self) -> None:
        self.world.clock.us = max(self.world.clock.us, time.time_ns() // 1_000)

    def _run(self) -> None:
        try:
            run = self._first
            for epoch in itertools.count():
                if self._ended.wait(0.15):
                    return
                self._tick()
                if epoch % 4 == 3:  # the driver dies before `commits/N`
                    run.publish([(f"ghost-{epoch}", 1), *self._rows(epoch, -1)])
                    run = self.world.run()
                run.batch(self._rows(epoch, 1))
                self.loop.wake()
        except BaseException as error:
            self._failed = error
            raise

    def _rows(self, epoch: int, sign: int) -> list[tuple[str, int]]:
        new = [(f"{epoch}-{i}", sign * i) for i in range(NEW)]
        return [*new, *((f"hot-{i}", sign * (epoch + 1)) for i in range(HOT))]

    def status(self) -> Status:
        """Return the status of the query."""
        assert self._failed is None
        return read_status(Checkpoint(self.world.checkpoint), self.world.log_backend)

    def goes_on(self, epochs: int = 3, seconds: float = 240) -> None:
        """Wait until more epochs are flushed."""
        flushed = self.status().flushed
        until(lambda: self.status().flushed >= flushed + epochs, seconds)

    def stops(self, word: str) -> None:
        """Wait until the status has an error with this word."""
        until(lambda: word in str(self.status().last_error))

    def drained(self) -> int:
        """End the query, and wait until all epochs are flushed; return their number."""
        self._ended.set()
        self._spark.join(60)
        last = self.status().checkpointed
        try:
            until(lambda: self.status().flushed == last)
        except AssertionError as error:
            raise AssertionError(self.status()) from error
        assert self.status().quarantined_rows == 0
        return last + 1

    def expected(self) -> dict[str, int]:
        """Return the rows that the table must have."""
        return self.world.expected()

    def found(self) -> dict[str, int]:
        """Read the table from all replicas."""
        query = f"SELECT k, v FROM {self.keyspace}.t"
        every = SimpleStatement(query, consistency_level=ConsistencyLevel.ALL, fetch_size=2_000)
        values: dict[str, int] = {}

        def read() -> bool:
            values.update({row.k: row.v for row in self._node.session().execute(every)})
            return True

        until(read)
        return values


Counting = Callable[[str], None]


@pytest.fixture
def streams(cluster: CassandraCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Return two running queries."""
    monkeypatch.setattr("wal_sink.flush.loop._RETRY_MOST_S", 0.5)
    with ExitStack() as stack:
        yield [stack.enter_context(Stream(cluster, tmp_path)) for _ in range(2)]


@pytest.fixture
def exact(cluster: CassandraCluster, streams: list[Stream], counted: Counted) -> Counting:
    """Return a function that ends the queries, and compares the tables with the committed rows."""

    def count(faults: str) -> None:
        cluster.await_up()
        count_rows(streams, ("one query", "another"), faults, counted)

    return count


def count_rows(
    streams: Sequence[Stream], names: Sequence[str], faults: str, counted: Counted
) -> None:
    """End the queries, and compare the tables with the committed rows."""
    for stream, name in zip(streams, names, strict=True):
        stream.drained()
        expected, present = stream.expected(), stream.found()
        right = sum(present.get(key) == value for key, value in expected.items())
        assert present.keys() == expected.keys()
        counted(Row(f"Cassandra, 3 nodes: {name}", VERSION, faults, len(expected), right))


def all_go_on(streams: list[Stream]) -> None:
    for stream in streams:
        stream.goes_on()


def test_flush_continues_without_one_node(
    cluster: CassandraCluster, streams: list[Stream], exact: Counting
) -> None:
    """The other two nodes are a quorum."""
    for node, end, back in (
        (cluster.nodes[1], ClusterNode.kill, ClusterNode.start),
        (cluster.nodes[2], ClusterNode.pause, ClusterNode.resume),
    ):
        end(node)
        all_go_on(streams)
        back(node)
        all_go_on(streams)
    exact("a node killed, another paused, and back")


def test_flush_waits_for_a_quorum(
    cluster: CassandraCluster, streams: list[Stream], exact: Counting
) -> None:
    """The flush stops with an error, and continues by itself."""
    paused, killed = cluster.nodes[1:]
    killed.kill()
    paused.pause()
    for stream in streams:
        stream.stops("TargetUnavailable")
    paused.resume()
    all_go_on(streams)
    killed.start()
    exact("quorum lost in mid-flush, and back")


def test_flush_continues_during_a_rolling_restart(
    cluster: CassandraCluster, streams: list[Stream], exact: Counting
) -> None:
    for node in cluster.nodes:
        node.stop()
        all_go_on(streams)
        node.start()
        cluster.await_up()
    exact("rolling restart")


def test_cassandra_request_goes_to_a_replica_of_its_rows(
    cluster: CassandraCluster, tmp_path: Path, counted: Counted
) -> None:
    """Each row has one replica, so its coordinator needs no other node.

    The control is a client that sends all requests to one node.
    """
    node = cluster.nodes[0]
    one = REPLICATION.replace("3", "1")
    with Stream(cluster, tmp_path, replication=one) as stream:
        for traced_node in cluster.nodes:
            traced_node.tool("settraceprobability", "1")
        for number in range(30):
            node.execute(f"SELECT v FROM {stream.keyspace}.t WHERE k = 'hot-{number}'")
        stream.goes_on(10)
        for traced_node in cluster.nodes:
            traced_node.tool("settraceprobability", "0")
        stream.drained()
    places: dict[object, set[str]] = {}
    for event in node.execute("SELECT session_id, source FROM system_traces.events"):
        places.setdefault(event.session_id, set()).add(event.source)
    kinds = {
        "rows": "batch|INTO {}.t\\b",
        "ledger": "{}.wal_sink_ledger",
        "control": "v FROM {}.t\\b",
    }
    served_alone: dict[str, list[bool]] = {kind: [] for kind in kinds}
    for traced in node.execute("SELECT * FROM system_traces.sessions"):
        request = f"{traced.request} {(traced.parameters or {}).get('query')}".replace('"', "")
        for kind, pattern in kinds.items():
            if re.search(pattern.format(stream.keyspace), request):
                served_alone[kind].append(places.get(traced.session_id) == {traced.coordinator})
    assert not all(served_alone.pop("control"))
    for kind, alone in served_alone.items():
        what = f"Cassandra, 3 nodes, 1 replica: requests of {kind} at it"
        assert len(alone) > 20
        counted(Row(what, VERSION, "none", len(alone), sum(alone)))


def test_coordinator_killed_in_a_ledger_update_loses_nothing(
    cluster: CassandraCluster, streams: list[Stream], exact: Counting
) -> None:
    """The node is killed after it has received the request.

    Only the row shows whether the update was applied.
    """
    for _ in range(2):
        died: list[ClusterNode] = []
        once = threading.Lock()

        def dies(node: ClusterNode, died: list[ClusterNode] = died, once=once) -> None:  # type: ignore[no-untyped-def]
            if once.acquire(blocking=False):
                node.kill()
                died.append(node)

        for node in cluster.nodes:
            node.proxy.at_ledger_update(lambda node=node, dies=dies: dies(node))  # type: ignore[misc]
        until(lambda died=died: bool(died))  # type: ignore[misc]
        all_go_on(streams)
        died[0].start()
        cluster.await_up()
    exact("coordinator killed in a conditional update, twice")


def test_network_faults_lose_and_double_nothing(
    cluster: CassandraCluster, streams: list[Stream], exact: Counting
) -> None:
    """Lost answers to ledger updates, latency, slow links, resets, and connections without answers."""
    lost = sum(node.proxy.lost for node in cluster.nodes)
    for _ in range(10):
        for node in cluster.nodes:
            node.proxy.at_ledger_update(lambda: None)
        count = sum(node.proxy.lost for node in cluster.nodes)
        until(lambda count=count: sum(n.proxy.lost for n in cluster.nodes) > count)  # type: ignore[misc]
    all_go_on(streams)
    lost = sum(node.proxy.lost for node in cluster.nodes) - lost
    for node in cluster.nodes:
        node.proxy.latency_s = 0.2
    all_go_on(streams)
    for node in cluster.nodes:
        node.proxy.latency_s, node.proxy.bytes_per_s = 0, 10_000
    all_go_on(streams)
    for node in cluster.nodes:
        node.proxy.bytes_per_s = 0
    for _ in range(5):
        for node in cluster.nodes:
            node.proxy.reset()
        all_go_on(streams)
    with cluster.nodes[0].proxy.half_open():
        all_go_on(streams)
    with ExitStack() as stack:
        for node in cluster.nodes:
            stack.enter_context(node.proxy.half_open())
        for stream in streams:
            stream.stops("TargetUnavailable")
    all_go_on(streams)
    exact("answers of conditional updates lost, latency, 10 kB a second, resets, half-open")
    assert lost >= 10


def test_flush_survives_alter_truncate_and_drop_of_its_table(
    cluster: CassandraCluster, streams: list[Stream], counted: Counted
) -> None:
    """ALTER changes nothing, TRUNCATE deletes earlier rows, and DROP stops the flush until CREATE."""
    rows, other = streams
    node = cluster.nodes[0]
    for change in (
        "ALTER TABLE {}.t ADD later int",
        "ALTER TABLE {}.t WITH comment = 'altered'",
        "ALTER KEYSPACE {} WITH replication = " + REPLICATION.replace("3", "2"),
        "ALTER KEYSPACE {} WITH replication = " + REPLICATION,
    ):
        for stream in streams:
            node.execute(change.replace("{}", stream.keyspace))
        all_go_on(streams)
    for change in ("TRUNCATE", "DROP TABLE"):
        node.execute(f"{change} {rows.keyspace}.t")
        if change == "TRUNCATE":
            rows.goes_on()
    rows.stops("the table is gone")
    gone = rows.status().flushed
    node.execute(rows.ddl)
    all_go_on(streams)
    rows.drained()
    committed, present = rows.expected(), rows.found()
    assert present.items() <= committed.items()
    later = {key for key in committed if key.startswith("hot") or int(key.split("-")[0]) > gone}
    faults = "ALTER of table and replication, TRUNCATE, DROP, CREATE; rows since DROP"
    counted(
        Row("Cassandra, 3 nodes: rows", VERSION, faults, len(later), len(later & present.keys()))
    )
    count_rows([other], ["rows"], "ALTER of table and replication", counted)


def test_flush_continues_when_a_node_joins_and_leaves(
    cluster: CassandraCluster, streams: list[Stream], exact: Counting
) -> None:
    with cluster.joined():
        all_go_on(streams)
    all_go_on(streams)
    exact("a node joined, and decommissioned")


def test_local_serial_survives_a_lost_datacenter(
    cluster: CassandraCluster,
    tmp_path: Path,
    counted: Counted,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other datacenter and a node of this one are lost.

    With SERIAL the flush waits until a node is back.
    """
    monkeypatch.setattr("wal_sink.flush.loop._RETRY_MOST_S", 0.5)
    replication = "{'class': 'NetworkTopologyStrategy', '0': 3, '1': 1}"
    levels = ("SERIAL", "LOCAL_SERIAL")
    with cluster.joined(datacenter=1) as far, ExitStack() as stack:
        streams = [
            stack.enter_context(
                Stream(
                    cluster,
                    tmp_path,
                    replication=replication,
                    options={
                        "cassandra.localDatacenter": "0",
                        "cassandra.serialConsistencyLevel": level,
                    },
                )
            )
            for level in levels
        ]
        far.kill()
        all_go_on(streams)
        cluster.nodes[2].pause()
        streams[0].stops("TargetUnavailable")
        streams[1].goes_on()
        cluster.nodes[2].resume()
        all_go_on(streams)
        far.start()
        cluster.await_up()
        count_rows(streams, levels, "the other datacenter and a node here lost, and back", counted)
        for stream in streams:
            cluster.nodes[0].execute(f"DROP KEYSPACE {stream.keyspace}")


@pytest.mark.parametrize(
    ("clock", "ahead_s", "takes_part"),
    [("-1h", -3_600, False), ("+1m", 60, False), ("+1h", 3_600, True)],
)
def test_flush_continues_when_a_clock_is_wrong(
    cluster: CassandraCluster,
    streams: list[Stream],
    exact: Counting,
    clock: str,
    ahead_s: int,
    takes_part: bool,
) -> None:
    """Timestamps of rows come from the driver. A ballot of a node that is ahead is followed by higher ones.

    By default a node drops requests that its clock shows to be late. Then nodes with different clocks believe
    that the others are down, and both answer clients. This test is the last one, since the clock also makes
    new schema versions.
    """
    node = cluster.nodes[2]
    with node.restarted(clock=clock, internode_timeout=not takes_part):
        if takes_part:
            cluster.await_up()
        now = "SELECT toUnixTimestamp(now()) AS ms FROM system.local"
        until(lambda: abs(node.execute(now)[0].ms / 1_000 - time.time() - ahead_s) < 30)
        all_go_on(streams)
    all_go_on(streams)
    exact(f"clock of a node {clock}, and right again" + (", taking part" if takes_part else ""))
