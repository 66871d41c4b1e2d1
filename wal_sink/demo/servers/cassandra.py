"""A real Cassandra node for the demo and for tests: started, killed, paused, and queried.

The embedded node is a child process. It needs neither Docker nor a service.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wal_sink.demo.servers import maven
from wal_sink.demo.servers.maven import java_command
from wal_sink.demo.servers.process import AnyServer, Child

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
"""How long a test's requests and connections wait for an answer: the driver's ten seconds and two are few
for a busy machine."""


class Node(AnyServer):
    """One Cassandra node with durable data, for tests. `execute` and `session` may be called by any thread.

    :param port: the CQL port.
    """

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

        self._require_running()
        with self._session_lock:
            if self._session is None:
                profile = ExecutionProfile(self._policy(), request_timeout=_ANSWER_S)
                profiles = {EXEC_PROFILE_DEFAULT: profile}
                # The driver would ask for a newer protocol first, which fills the node's log.
                cluster = Cluster(
                    [self.host],
                    self.port,
                    auth_provider=self._auth(),
                    protocol_version=5,
                    execution_profiles=profiles,
                    connect_timeout=_ANSWER_S,
                    control_connection_timeout=_ANSWER_S,
                )
                try:
                    self._session = cluster.connect()
                except BaseException:
                    cluster.shutdown()
                    raise
            return self._session

    def _policy(self) -> Any:
        """Return the driver's policy, which says whom `session` asks."""
        from cassandra.policies import RoundRobinPolicy  # noqa: PLC0415 - a node needs no driver

        return RoundRobinPolicy()

    def _auth(self) -> Any:
        """Return the driver's provider of the login of `session`; None: no login."""

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


def cassandra_yaml(*, rpc_address: str, port: int, storage_port: int) -> dict[str, object]:
    """Make cassandra.yaml of a node without peers; Cassandra's defaults hold for what is not in it.

    What a node alone answers late is late because the machine is busy: it has half a minute for a request,
    where Cassandra's defaults are 1.8 seconds for a conditional write and 2 for another one.
    """
    loopback = "127.0.0.1"
    provider = "org.apache.cassandra.locator.SimpleSeedProvider"
    seeds = [{"seeds": f"{loopback}:{storage_port}"}]
    return {
        "num_tokens": 1,
        "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
        "endpoint_snitch": "SimpleSnitch",
        "listen_address": loopback,
        "rpc_address": rpc_address,
        "broadcast_rpc_address": loopback,
        "storage_port": storage_port,
        "native_transport_port": port,
        "seed_provider": [{"class_name": provider, "parameters": seeds}],
        "commitlog_sync": "batch",  # a write is acknowledged when it is on the disk
        "auto_snapshot": False,  # a test's dropped keyspace is not wanted back
        **dict.fromkeys(_TIMEOUTS, "30s"),
    }


VERSION = "5.0.9"
_FLAGS = """
    -ea -Xss256k -XX:+ExitOnOutOfMemoryError -Djava.net.preferIPv4Stack=true
    -Djdk.attach.allowAttachSelf=true -Dio.netty.tryReflectionSetAccessible=true
    -Dcassandra-foreground=yes -Djava.security.manager=allow
"""
OPENED = """
    java.base/java.io java.base/java.lang java.base/java.lang.module java.base/java.lang.ref
    java.base/java.nio java.base/java.util java.base/java.util.concurrent
    java.base/java.util.concurrent.atomic java.base/jdk.internal.loader java.base/jdk.internal.math
    java.base/jdk.internal.misc java.base/jdk.internal.module java.base/jdk.internal.ref
    java.base/jdk.internal.reflect java.base/jdk.internal.util.jar java.base/sun.nio.ch
    java.management.rmi/com.sun.jmx.remote.internal.rmi java.rmi/sun.rmi.registry
    java.rmi/sun.rmi.server java.sql/java.sql jdk.management/com.sun.management.internal
    jdk.unsupported/sun.misc
"""
"""What Cassandra 5.0 looks into, on Java 17."""
_LOGBACK = """\
<configuration><appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
  <encoder><pattern>%-5level [%thread] %date{ISO8601} %F:%L - %msg%n</pattern></encoder>
</appender><root level="INFO"><appender-ref ref="OUT"/></root></configuration>
"""


class EmbeddedCassandra(Child, Node):
    """One Cassandra node on 127.0.0.1, in a process of its own, with durable data.

    Java 17 is needed. The jars are downloaded at the first start of a version and kept in the
    user's cache folder. The node dies with this process, however that one ends. `start`
    also raises `java.JavaNotFound` and `maven.JarsNotResolved`. Java gets what the environment's
    `JVM_EXTRA_OPTS` says as well, as it does from Cassandra's own scripts.

    :param folder: where data, commit log, log and configuration live; it is kept, and a later node
        goes on from it. None: a temporary one, removed by `close`.
    :param version: of `org.apache.cassandra:cassandra-all`.
    :param heap: the most that the Java heap grows to, in Java's notation.
    :param settings: entries of cassandra.yaml; they override the choices made here.
    :param java_options: further options of its Java, separated by blanks.
    """

    ports = 2
    """For CQL, and the next one for what nodes say to each other."""

    def __init__(
        self,
        folder: Path | str | None = None,
        *,
        version: str = VERSION,
        heap: str = "512m",
        settings: Mapping[str, object] = {},
        java_options: str = "",
    ) -> None:
        super().__init__(f"Cassandra {version}", "cassandra", folder)
        self.version = version
        self._java_options = java_options
        self._heap = heap
        yaml = cassandra_yaml(rpc_address=self.host, port=self.port, storage_port=self.port + 1)
        self._settings = {**yaml, **settings}

    def _command(self) -> list[str]:
        """Write the configuration and return the command that runs a node with it."""
        conf = self.folder / "conf"
        for folder in (conf, self.log.parent, self.folder / "scratch"):
            folder.mkdir(parents=True, exist_ok=True)
        settings = in_4_0(self._settings) if self.version.startswith("4.0.") else self._settings
        (conf / "cassandra.yaml").write_text(json.dumps(settings, indent=1))
        (conf / "logback.xml").write_text(_LOGBACK)
        java = java_command(OPENED.split())
        artifact = maven.Artifact("org.apache.cassandra", "cassandra-all", self.version)
        jars = maven.jars(artifact, f"cassandra-{self.version}")
        return [
            *(*java, f"-Xmx{self._heap}", *_FLAGS.split(), *QUICK_START.split()),
            *shlex.split(os.environ.get("JVM_EXTRA_OPTS", "")),
            *shlex.split(self._java_options),
            *(f"-javaagent:{jar}" for jar in jars.glob("jamm-*.jar")),
            f"-Djava.io.tmpdir={self.folder}/scratch",  # native code unpacked there outlives a kill
            f"-Dcassandra.storagedir={self.folder}",
            f"-Dcassandra.logdir={self.folder}/log",
            f"-Dcassandra.config={(conf / 'cassandra.yaml').as_uri()}",
            f"-Dlogback.configurationFile={conf / 'logback.xml'}",
            *("-cp", f"{jars}/*", "org.apache.cassandra.service.CassandraDaemon"),
        ]


def in_4_0(settings: Mapping[str, object]) -> dict[str, object]:
    """Return settings as Cassandra 4.0 takes them: a duration has its unit in its name."""
    result: dict[str, object] = {}
    for name, value in settings.items():
        duration = re.fullmatch(r"(\d+)(ms|s)", str(value))
        if duration:
            result[f"{name}_in_ms"] = int(duration[1]) * (1 if duration[2] == "ms" else 1_000)
        else:
            result[name] = value
    return result
