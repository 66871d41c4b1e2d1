"""Starts, kills, pauses and asks a Cassandra node, wherever that runs."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Any, Literal

from wal_sink.testing.servers.any_server import AnyServer, DidNotStart

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CommitlogSync = Literal["periodic", "batch"]

# What halves the time to start. A test's node does not live long enough for the optimising compiler
# or a concurrent collector to pay off; 1,000 rows show as well as 100,000 how much memory one
# takes; there are no peers to wait for.
QUICK_START = """
    -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData
    -Dcassandra.memtable_row_overhead_computation_step=1000
    -Dcassandra.ring_delay_ms=0 -Dcassandra.skip_wait_for_gossip_to_settle=0
    -Dcassandra.superuser_setup_delay_ms=0 -Dcassandra.shutdown_announce_in_ms=0
"""
_OPTIONS = bytes((4, 0, 0, 0, 5, 0, 0, 0, 0))  # the CQL protocol's smallest request, version 4
_SUPPORTED = b"\x06"  # the opcode of its answer, the fifth byte

_TIMEOUTS = (
    *("request_timeout", "read_request_timeout", "range_request_timeout"),
    *("write_request_timeout", "counter_write_request_timeout", "cas_contention_timeout"),
)
_ANSWER_S = 60.0
"""How long a test's own requests wait for an answer: the driver's ten seconds are few for a busy machine."""


class CassandraDidNotStart(DidNotStart):
    """The node did not come up; where it got that far, the text ends with the last lines of its log."""


class Node(AnyServer):
    """One Cassandra node with durable data, for tests. `execute` and `session` may be called by any thread.

    :param port: the CQL port.
    """

    did_not_start = CassandraDidNotStart
    patience_s = 180.0

    def __init__(self, title: str, host: str, port: int) -> None:
        super().__init__(title, host, port)
        self._session: Any = None
        self._session_lock = threading.Lock()

    @property
    def contact_points(self) -> tuple[str]:
        """The host, as drivers take it."""
        return (self.host,)

    def execute(self, cql: str, parameters: Sequence[object] | None = None) -> list[Any]:
        """Run one statement on `session` and return all its rows; `parameters` fill its `%s`."""
        return list(self.session().execute(cql, parameters))

    def create_keyspace(self, name: str) -> None:
        """Create the keyspace of exactly that name, with one replica, if there is none."""
        self.execute(
            f'CREATE KEYSPACE IF NOT EXISTS "{name}" WITH replication = '
            "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        )

    def session(self) -> Any:
        """Return a driver session (consistency LOCAL_ONE); it is closed when the node ends."""
        from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile  # noqa: PLC0415
        from cassandra.policies import RoundRobinPolicy  # noqa: PLC0415 - a node needs no driver

        self._require_running()
        with self._session_lock:
            if self._session is None:
                profile = ExecutionProfile(RoundRobinPolicy(), request_timeout=_ANSWER_S)
                profiles = {EXEC_PROFILE_DEFAULT: profile}
                # The driver would ask for a newer protocol first, which fills the node's log.
                cluster = Cluster(
                    [self.host], self.port, protocol_version=5, execution_profiles=profiles
                )
                try:
                    self._session = cluster.connect()
                except BaseException:
                    cluster.shutdown()
                    raise
            return self._session

    def _disconnect(self) -> None:
        with self._session_lock:
            if self._session is not None:
                self._session.cluster.shutdown()
                self._session = None

    def _unanswered(self) -> str | None:
        """Ask whether the port speaks CQL; it is open earlier than that."""
        try:
            with socket.create_connection((self.host, self.port), timeout=1) as connection:
                connection.sendall(_OPTIONS)
                return None if connection.recv(9)[4:5] == _SUPPORTED else ""
        except OSError:
            return ""


def cassandra_yaml(
    commitlog_sync: CommitlogSync, *, rpc_address: str, port: int, storage_port: int
) -> dict[str, object]:
    """Make cassandra.yaml of a node without peers; Cassandra's defaults hold for what is not in it.

    What a node alone answers late is late because the machine is busy: it has half a minute for a request,
    where Cassandra's defaults are 1.8 seconds for a conditional write and 2 for another one.

    `commitlog_sync` is `batch`, which acknowledges a write when it is on the disk, or `periodic`,
    Cassandra's default, up to 10 seconds earlier.
    """
    loopback = "127.0.0.1"
    provider = "org.apache.cassandra.locator.SimpleSeedProvider"
    seeds = [{"seeds": f"{loopback}:{storage_port}"}]
    yaml: Mapping[str, object] = {
        "num_tokens": 1,
        "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
        "endpoint_snitch": "SimpleSnitch",
        "listen_address": loopback,
        "rpc_address": rpc_address,
        "broadcast_rpc_address": loopback,
        "storage_port": storage_port,
        "native_transport_port": port,
        "seed_provider": [{"class_name": provider, "parameters": seeds}],
        "commitlog_sync": commitlog_sync,
        "auto_snapshot": False,  # a test's dropped keyspace is not wanted back
        **dict.fromkeys(_TIMEOUTS, "30s"),
    }
    periodic = {"commitlog_sync_period": "10000ms"} if commitlog_sync == "periodic" else {}
    return {**yaml, **periodic}
