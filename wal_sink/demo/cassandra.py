"""Cassandra in the demo: a node without Docker, which tests also use; and the store of the demo."""

from __future__ import annotations

import json
import logging
import os
import shlex
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from pyspark.sql import Row

from wal_sink.demo import maven
from wal_sink.demo.maven import java_command
from wal_sink.demo.pauses import Pausing
from wal_sink.demo.queries import CONTROL, FLIGHTS, Query
from wal_sink.demo.server import HOST, AnyServer, Child
from wal_sink.demo.stores import RowStore
from wal_sink.targets.cassandra import CassandraTarget

# Options that halve the time of a start. The node of a test runs too short for the optimising compiler and
# for a concurrent garbage collector. The node measures the memory of 1,000 rows in place of 100,000, and does
# not wait for peers.
QUICK_START = """
    -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData
    -Dcassandra.memtable_row_overhead_computation_step=1000
    -Dcassandra.ring_delay_ms=0 -Dcassandra.skip_wait_for_gossip_to_settle=0
    -Dcassandra.superuser_setup_delay_ms=0 -Dcassandra.shutdown_announce_in_ms=0
"""
_OPTIONS = bytes((4, 0, 0, 0, 5, 0, 0, 0, 0))  # a request OPTIONS of version 4 of the CQL protocol
_SUPPORTED = b"\x06"  # the opcode of its answer, SUPPORTED, in the fifth byte

_TIMEOUTS = (
    *("request_timeout", "read_request_timeout", "range_request_timeout"),
    *("write_request_timeout", "counter_write_request_timeout", "cas_contention_timeout"),
)
_ANSWER_S = 60.0
"""The timeout of requests and connections in seconds. The driver's defaults are short for a busy machine."""


class Node(AnyServer):
    """A Cassandra node with durable data. Any thread may call `execute` and `session`.

    :param port: the port of CQL.
    """

    patience_s = 180.0

    def __init__(self, title: str, host: str, port: int) -> None:
        super().__init__(title, host, port)
        self._session: Any = None
        self._session_lock = threading.Lock()

    def execute(self, cql: str, parameters: Sequence[object] | None = None) -> list[Any]:
        """Run a statement and return all its rows.

        :param parameters: the values for each `%s` of the statement.
        """
        return list(self.session().execute(cql, parameters))

    def create_keyspace(self, name: str) -> None:
        """Create a keyspace with one replica, unless it exists. The name is case-sensitive."""
        self.execute(
            f'CREATE KEYSPACE IF NOT EXISTS "{name}" WITH replication = '
            "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        )

    def session(self) -> Any:
        """Return a session of the driver with consistency LOCAL_ONE. The node closes it before it ends."""
        from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile  # noqa: PLC0415

        self._require_running()
        with self._session_lock:
            if self._session is None:
                profile = ExecutionProfile(self._policy(), request_timeout=_ANSWER_S)
                profiles = {EXEC_PROFILE_DEFAULT: profile}
                # By default the driver tries a newer protocol first, and the node logs an error.
                cluster = Cluster(
                    [self.host],
                    self.port,
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
        """Return the load-balancing policy of `session`."""
        from cassandra.policies import RoundRobinPolicy  # noqa: PLC0415 - a node needs no driver

        return RoundRobinPolicy()

    def _disconnect(self) -> None:
        with self._session_lock:
            if self._session is not None:
                self._session.cluster.shutdown()
                self._session = None

    def _unanswered(self) -> str | None:
        """Return None once the node answers an OPTIONS request. Its port opens before it can answer."""
        try:
            with socket.create_connection((self.host, self.port), timeout=1) as connection:
                connection.sendall(_OPTIONS)
                return None if connection.recv(9)[4:5] == _SUPPORTED else ""
        except OSError:
            return ""


def cassandra_yaml(*, rpc_address: str, port: int, storage_port: int) -> dict[str, object]:
    """Return the settings in cassandra.yaml of a node without peers.

    The timeout of requests is 30 seconds; the default is about two seconds. A node without peers is late only
    if the machine is busy.
    """
    provider = "org.apache.cassandra.locator.SimpleSeedProvider"
    seeds = [{"seeds": f"{HOST}:{storage_port}"}]
    return {
        "num_tokens": 1,
        "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
        "endpoint_snitch": "SimpleSnitch",
        "listen_address": HOST,
        "rpc_address": rpc_address,
        "broadcast_rpc_address": HOST,
        "storage_port": storage_port,
        "native_transport_port": port,
        "seed_provider": [{"class_name": provider, "parameters": seeds}],
        "commitlog_sync": "batch",  # the node acknowledges a write after it is on the disk
        "auto_snapshot": False,  # no test restores a dropped keyspace
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
"""The packages of Java 17 that Cassandra 5.0 accesses by reflection."""
_LOGBACK = """\
<configuration><appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
  <encoder><pattern>%-5level [%thread] %date{ISO8601} %F:%L - %msg%n</pattern></encoder>
</appender><root level="INFO"><appender-ref ref="OUT"/></root></configuration>
"""


class EmbeddedCassandra(Child, Node):
    """A Cassandra node on 127.0.0.1 in a child process, with durable data.

    The node needs Java 17. The first start downloads the jars, and may raise the errors of `maven.jars`. The
    variable `JVM_EXTRA_OPTS` contains more options of Java, as for Cassandra's own scripts. The node dies
    with this process, also at a SIGKILL.

    :param folder: see `Child`.
    :param version: the version of the artifact `org.apache.cassandra:cassandra-all`.
    :param heap: the maximal size of the Java heap, such as `512m`.
    :param settings: entries of cassandra.yaml, which override the entries of `cassandra_yaml`.
    :param java_options: more options of Java, separated by spaces.
    """

    ports = 2  # for CQL, and for other nodes

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
        """Write the configuration, and return the command of the node."""
        conf = self.folder / "conf"
        for folder in (conf, self.log.parent, self.folder / "scratch"):
            folder.mkdir(parents=True, exist_ok=True)
        (conf / "cassandra.yaml").write_text(json.dumps(self._settings, indent=1))
        (conf / "logback.xml").write_text(_LOGBACK)
        java = java_command(OPENED.split())
        artifact = maven.Artifact("org.apache.cassandra", "cassandra-all", self.version)
        jars = maven.jars(artifact, f"cassandra-{self.version}")
        return [
            *(*java, f"-Xmx{self._heap}", *_FLAGS.split(), *QUICK_START.split()),
            *shlex.split(os.environ.get("JVM_EXTRA_OPTS", "")),
            *shlex.split(self._java_options),
            *(f"-javaagent:{jar}" for jar in jars.glob("jamm-*.jar")),
            f"-Djava.io.tmpdir={self.folder}/scratch",  # a killed node leaves unpacked libraries there
            f"-Dcassandra.storagedir={self.folder}",
            f"-Dcassandra.logdir={self.folder}/log",
            f"-Dcassandra.config={(conf / 'cassandra.yaml').as_uri()}",
            f"-Dlogback.configurationFile={conf / 'logback.xml'}",
            *("-cp", f"{jars}/*", "org.apache.cassandra.service.CassandraDaemon"),
        ]


_KEYSPACE = "travel"
_IN_FLIGHT = 100
_READ_TIMEOUT_S = 60
_CONTROL = f"""
CREATE TABLE {_KEYSPACE}.{CONTROL.table} (
    key text PRIMARY KEY, origin text, day date, scheduled timestamp, carrier text, flight int
)
"""


class PausingCassandra(Pausing, CassandraTarget):
    """Cassandra with pauses."""


class Cassandra(RowStore):
    """Cassandra as a store. A row overwrites the row with the same key; a row with a new key is extra."""

    target = "cassandra"

    @classmethod
    @contextmanager
    def start(cls, folder: Path, notify: Callable[[str], None]) -> Iterator[Self]:
        """Start a node."""
        # The server warns of the cost of each count(*).
        logging.getLogger("cassandra.protocol").setLevel(logging.ERROR)
        node = EmbeddedCassandra(folder / "cassandra", heap="1g")
        notify(f"Starting {node.title}; the first start downloads its jars …")
        with node:
            yield cls(str(node.port), node)

    def create(self) -> None:
        """Make the keyspace, and the table of the control."""
        self.server.create_keyspace(_KEYSPACE)
        self.server.execute(_CONTROL)

    def options(self, table: str) -> Mapping[str, str]:
        """Return the options of the sink. Flights have a partition for each airport and day."""
        keys = {"keyColumns": "key"}
        if table == FLIGHTS.table:
            keys = {
                "keyColumns": "origin,day,scheduled,carrier,flight",
                "partitionColumns": "origin,day",
            }
        return {
            "createTable": "true",
            **keys,
            "cassandra.contactPoints": HOST,
            "cassandra.port": self.address,
            "keyspace": _KEYSPACE,
            "table": table,
        }

    def insert(self, table: str, rows: Iterable[Row]) -> None:
        """Send a prepared INSERT for each row, with up to 100 in flight."""
        from cassandra.cluster import Cluster  # noqa: PLC0415 - in tasks only
        from cassandra.concurrent import execute_concurrent_with_args  # noqa: PLC0415 - as above

        cluster = Cluster([HOST], int(self.address))
        try:
            session = cluster.connect(_KEYSPACE)
            insert = session.prepare(
                f"INSERT INTO {table} (key, origin, day, scheduled, carrier, flight)"  # noqa: S608
                " VALUES (?, ?, ?, ?, ?, ?)"
            )
            execute_concurrent_with_args(session, insert, rows, _IN_FLIGHT)
        finally:
            cluster.shutdown()

    def count(self, table: str) -> int:
        """Count the rows of a table."""
        tables = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s"
        if (table,) not in self.server.execute(tables, [_KEYSPACE]):
            return 0
        (row,) = self._read(f"SELECT count(*) FROM {_KEYSPACE}.{table}")  # noqa: S608
        return int(row[0])

    def rows(self, query: Query) -> Iterable[Sequence[Any]]:
        """Return the rows of the query's table. The driver reads a page at a time."""
        select = f"SELECT {', '.join(query.columns)} FROM {_KEYSPACE}.{query.table}"  # noqa: S608
        rows: Iterable[Sequence[Any]] = self._read(select)
        return rows

    def _read(self, select: str) -> Any:
        return self.server.session().execute(select, timeout=_READ_TIMEOUT_S)
