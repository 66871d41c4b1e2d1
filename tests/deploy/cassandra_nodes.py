"""Three or four Cassandra nodes on this machine, each in its own process and at its own loopback address.

Clients connect to a node through a `Proxy`, whose address the node announces as its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from cassandra import ConsistencyLevel, DriverException
from cassandra.cluster import NoHostAvailable
from cassandra.policies import WhiteListRoundRobinPolicy
from cassandra.query import SimpleStatement

from tests.deploy.proxy import Proxy
from tests.support.programs import ran
from wal_sink.demo import maven
from wal_sink.demo.cassandra import OPENED, VERSION, EmbeddedCassandra
from wal_sink.demo.server import choose_port, ports_are_free
from wal_sink.errors import TargetUnavailable

_MORE = """
    -Dcassandra.ring_delay_ms=5000 -Dcassandra.shutdown_announce_in_ms=500
"""
"""Nodes with peers wait for them. If an option comes twice, Java uses the last one."""
FAKETIME = "faketime/libfaketimeMT.so.1"
REPLICATION = "{'class': 'NetworkTopologyStrategy', 'replication_factor': 3}"


class ClusterNode(EmbeddedCassandra):
    """A node of the cluster.

    :param number: the last number of the address. The node is at 127.0.0.<number>, its proxy at
        127.0.1.<number>.

    :param datacenter: the second number of the address.

    :param joins: True to copy its part of the data from the other nodes at the start.
    """

    patience_s = 240.0

    def __init__(
        self,
        number: int,
        port: int,
        seeds: str,
        datacenter: int = 0,
        *,
        joins: bool = False,
    ) -> None:
        host, proxy = (f"127.{datacenter}.{third}.{number}" for third in (0, 1))
        settings = {**_settings(host, proxy, port, seeds), "auto_bootstrap": joins}
        super().__init__(settings=settings)
        self.number = number
        self.host, self.port = host, port
        self.title = f"Cassandra {VERSION} at {host}"
        self.proxy = Proxy(proxy, port, host)
        self.clock = ""
        """The offset of the node's clock at its next start, for libfaketime: `+30s`."""

    def _command(self) -> list[str]:
        command = super()._command()
        more = [
            *_MORE.split(),
            f"-Dcassandra.jmx.local.port={self.port + 1 + self.number}",
        ]
        at = command.index("-cp")
        return [*command[:at], *more, *command[at:]]

    def _environment(self) -> Mapping[str, str] | None:
        if not self.clock:
            return None
        library = next(Path("/usr/lib").glob(f"*/{FAKETIME}"), None)
        assert library, "install the package libfaketime"
        # The monotonic clock is right. Without the last variable, Java's waits would end at once.
        faked = {
            "FAKETIME": self.clock,
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        }
        return {**os.environ, "LD_PRELOAD": str(library), **faked}

    @contextmanager
    def restarted(self, *, clock: str, **settings: object) -> Iterator[None]:
        """Restart the node with this clock and these settings; restart it normally at the end."""
        earlier = self._settings
        self.stop()
        self.clock, self._settings = clock, {**earlier, **settings}
        try:
            self.start()
            yield
        finally:
            self.stop()
            self.clock, self._settings = "", earlier
            self.start()

    def tool(self, *arguments: str) -> None:
        """Run nodetool for the node."""
        jars = maven.cache_folder() / f"cassandra-{self.version}"
        java = [*maven.java_command(OPENED.split()), f"-Duser.home={self.folder}", "-Xmx64m"]
        tool = ["-cp", f"{jars}/*", "org.apache.cassandra.tools.NodeTool"]
        address = ["-h", "127.0.0.1", "-p", str(self.port + 1 + self.number)]
        command = [*java, *tool, *address, *arguments]
        done = ran(command, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr

    def _policy(self) -> Any:
        """Return the policy of a session with this node alone, without its proxy."""
        return WhiteListRoundRobinPolicy([self.host])

    def read_all(self) -> list[Any]:
        """Read a row from all three replicas.

        :raises Exception: an error of the driver, if the node believes that another one is down.
        """
        query = SimpleStatement(
            "SELECT k FROM probe.t WHERE k = 1", consistency_level=ConsistencyLevel.ALL
        )
        return list(self.session().execute(query))


def _settings(host: str, proxy: str, port: int, seeds: str) -> dict[str, object]:
    provider = "org.apache.cassandra.locator.SimpleSeedProvider"
    return {
        "num_tokens": 4,
        "commitlog_sync": "periodic",
        "commitlog_sync_period": "10000ms",
        "listen_address": host,
        "rpc_address": host,
        "broadcast_rpc_address": proxy,
        "endpoint_snitch": "RackInferringSnitch",  # takes the datacenter from the address
        "native_transport_port": port,
        "storage_port": port + 1,
        "seed_provider": [{"class_name": provider, "parameters": [{"seeds": seeds}]}],
        "hinted_handoff_enabled": True,
        "memtable_heap_space": "96MiB",
        "memtable_offheap_space": "64MiB",
        # All nodes share one machine, so their answers are late without a fault of the test.
        **dict.fromkeys(
            ("request_timeout", "read_request_timeout", "range_request_timeout"), "10s"
        ),
        **dict.fromkeys(("write_request_timeout", "cas_contention_timeout"), "5s"),
    }


class CassandraCluster:
    """Three nodes and their proxies, which end with the `with` block."""

    def __init__(self) -> None:
        self._port = _choose_port()
        self._seeds = ",".join(f"127.0.0.{number}:{self._port + 1}" for number in (1, 2))
        self.nodes = [ClusterNode(number, self._port, self._seeds) for number in (1, 2, 3)]

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        for node in self.nodes:
            node.proxy.start()
        self.nodes[0].start()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda node: node.start(), self.nodes[1:]))
        make = f"CREATE KEYSPACE IF NOT EXISTS probe WITH replication = {REPLICATION}"
        self.nodes[0].execute(make)
        self.nodes[0].execute("CREATE TABLE probe.t (k int PRIMARY KEY)")
        self.await_up()

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.close()
            node.proxy.stop()

    @contextmanager
    def joined(self, datacenter: int = 0) -> Iterator[ClusterNode]:
        """Add a fourth node, and decommission it at the end."""
        node = ClusterNode(4, self._port, self._seeds, datacenter, joins=True)
        self.nodes.append(node)
        node.proxy.start()
        try:
            node.start()
            self.await_up()
            yield node
            node.tool("decommission", "--force")
        finally:
            self.nodes.remove(node)
            node.close()
            node.proxy.stop()

    @property
    def contact_points(self) -> str:
        """The addresses of the proxies."""
        return ",".join(node.proxy.host for node in self.nodes)

    @property
    def port(self) -> int:
        """The port of CQL, the same on all nodes."""
        return self._port

    def await_up(self) -> None:
        """Wait until each node can read from all replicas."""
        for node in self.nodes:
            until(lambda node=node: node.read_all() is not None)  # type: ignore[misc]


def until(condition: Callable[[], bool], seconds: float = 240) -> None:
    """Wait for a condition. An error of the driver counts as not true yet."""
    deadline = time.monotonic() + seconds
    reason: object = "not so"
    while True:
        try:
            if condition():
                return
        except (DriverException, NoHostAvailable, TargetUnavailable) as error:
            reason = error
        assert time.monotonic() < deadline, f"it did not come: {reason!r}"
        time.sleep(0.1)


def _choose_port() -> int:
    while True:
        port = choose_port("127.0.0.1", 6)
        if all(ports_are_free(host, port, 2) for host in _hosts()):
            return port


def _hosts() -> Iterator[str]:
    for number in (1, 2, 3, 4):
        yield f"127.0.0.{number}"
        yield f"127.0.1.{number}"
    yield from ("127.1.0.4", "127.1.1.4")
