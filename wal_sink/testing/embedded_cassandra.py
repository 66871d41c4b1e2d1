"""A real Cassandra node as a child process, for tests and demonstrations: no Docker, no service."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import signal
import socket
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from wal_sink.errors import WalSinkError
from wal_sink.testing import maven

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# From the fourth line on: what halves the time to start. A test's node does not live long enough
# for the optimising compiler or a concurrent collector to pay off; 1,000 rows show as well as
# 100,000 how much memory one takes; there are no peers to wait for.
_FLAGS = """
    -ea -Xss256k -XX:+ExitOnOutOfMemoryError -XX:-UsePerfData -Djava.net.preferIPv4Stack=true
    -Djdk.attach.allowAttachSelf=true -Dio.netty.tryReflectionSetAccessible=true
    -Dcassandra-foreground=yes
    -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
    -Dcassandra.memtable_row_overhead_computation_step=1000
    -Dcassandra.ring_delay_ms=0 -Dcassandra.skip_wait_for_gossip_to_settle=0
    -Dcassandra.superuser_setup_delay_ms=0 -Dcassandra.shutdown_announce_in_ms=0
"""
_LOGBACK = """\
<configuration><appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
  <encoder><pattern>%-5level [%thread] %date{ISO8601} %F:%L - %msg%n</pattern></encoder>
</appender><root level="INFO"><appender-ref ref="OUT"/></root></configuration>
"""
_OPTIONS = bytes((4, 0, 0, 0, 5, 0, 0, 0, 0))  # the CQL protocol's smallest request, version 4
_SUPPORTED = b"\x06"  # the opcode of its answer, the fifth byte


class CassandraDidNotStart(WalSinkError):
    """The embedded node did not come up; the text ends with the last lines of its log."""

    exit_code = 4


class EmbeddedCassandra:
    """One Cassandra node on 127.0.0.1, in a process of its own, with durable data.

    Java 17 is needed. The jars are downloaded at the first start of a version and kept in the
    user's cache folder. On Linux the node dies with this process, however that one ends. One thread
    starts, stops and closes the node; `execute` and `session` may be called by any.

    :param folder: where data, commit log, log and configuration live; it is kept, and a later node
        goes on from it. None: a temporary one, removed by `close`.
    :param version: of `org.apache.cassandra:cassandra-all`.
    :param heap: the most that the Java heap grows to, in Java's notation.
    :param commitlog_sync: `batch` acknowledges a write when it is on the disk; `periodic`,
        Cassandra's default, up to 10 seconds earlier.
    :param settings: entries of cassandra.yaml; they override the choices made here.
    """

    host = "127.0.0.1"
    contact_points = (host,)

    def __init__(
        self,
        folder: Path | str | None = None,
        *,
        version: str = "5.0.9",
        heap: str = "512m",
        commitlog_sync: Literal["periodic", "batch"] = "batch",
        settings: Mapping[str, object] = {},
    ) -> None:
        self._temporary = None
        if folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="wal_sink-cassandra-")
            folder = self._temporary.name
        self.folder = Path(folder).absolute()
        self.log = self.folder / "log" / "cassandra.log"  # what it prints, at all its starts
        self.version = version
        self.port = _free_port()  # and the next one, for what nodes say to each other
        self._heap = heap
        self._settings = self._yaml(commitlog_sync) | dict(settings)
        self._process: subprocess.Popen[bytes] | None = None
        # The node dies with the thread that starts it, so this one lives as long as the object.
        self._starter = ThreadPoolExecutor(1, "embedded-cassandra")
        self._session: Any = None
        self._session_lock = threading.Lock()

    @property
    def running(self) -> bool:
        """Whether the process is there, be it paused."""
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> Self:
        """Start the node unless it runs, and return when it answers on its CQL port.

        :raises CassandraDidNotStart: it ended, or gave no answer within 180 seconds, or one of its
            ports was taken while it was down.
        :raises WalSinkError: `JavaNotFound` or `JarsNotResolved`, see `wal_sink.testing.maven`.
        """
        if self.running:
            return self
        command = self._command()
        if not _are_free(self.port):
            what = f"Port {self.port} or {self.port + 1} was free before and is in use now."
            raise CassandraDidNotStart(what, "Find out what listens there, or make a new node.")
        with self.log.open("ab") as log:
            begin = log.tell()
            self._process = self._starter.submit(
                subprocess.Popen,
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the tests, which then stop the node
            ).result()
        try:
            self._await_answer(begin)
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """Shut the node down as an operator would; kill it if that takes over 30 seconds."""
        self._close_session()
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)  # a paused one would not see the next signal
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(30)
        self.kill()

    def kill(self) -> None:
        """End the process at once, as a crash does; what was acknowledged must survive."""
        self._close_session()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Freeze the process: connections stay open and nothing answers."""
        process = self._alive()
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)  # until its last thread stands

    def resume(self) -> None:
        """Go on after `pause`."""
        self._alive().send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End the node for good, and remove its folder if that is a temporary one."""
        if self._temporary is None:
            self.stop()
        else:
            self.kill()  # seconds faster, and nothing remains that should be in order
            self._temporary.cleanup()
        self._starter.shutdown()

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

        self._alive()
        with self._session_lock:
            if self._session is None:
                profiles = {EXEC_PROFILE_DEFAULT: ExecutionProfile(RoundRobinPolicy())}
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

    def _close_session(self) -> None:
        with self._session_lock:
            if self._session is not None:
                self._session.cluster.shutdown()
                self._session = None

    def _alive(self) -> subprocess.Popen[bytes]:
        if self._process is None or not self.running:
            raise RuntimeError("The embedded Cassandra node is not running: call start().")
        return self._process

    def _yaml(self, commitlog_sync: str) -> dict[str, object]:
        """Make cassandra.yaml; Cassandra's defaults hold for what is not in it."""
        seeds = [{"seeds": f"{self.host}:{self.port + 1}"}]
        provider = "org.apache.cassandra.locator.SimpleSeedProvider"
        yaml = {
            "num_tokens": 1,
            "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
            "endpoint_snitch": "SimpleSnitch",
            "listen_address": self.host,
            "rpc_address": self.host,
            "storage_port": self.port + 1,
            "native_transport_port": self.port,
            "seed_provider": [{"class_name": provider, "parameters": seeds}],
            "commitlog_sync": commitlog_sync,
            "auto_snapshot": False,  # nobody wants a test's dropped keyspace back
        }
        return yaml | ({"commitlog_sync_period": "10000ms"} if commitlog_sync == "periodic" else {})

    def _command(self) -> list[str]:
        """Write the configuration and return the command that runs a node with it."""
        conf = self.folder / "conf"
        for folder in (conf, self.log.parent, self.folder / "scratch"):
            folder.mkdir(parents=True, exist_ok=True)
        (conf / "cassandra.yaml").write_text(json.dumps(self._settings, indent=1))
        (conf / "logback.xml").write_text(_LOGBACK)
        java = maven.java_command("17")
        artifact = maven.Artifact("org.apache.cassandra", "cassandra-all", self.version)
        jars = maven.jars(artifact, f"cassandra-{self.version}", java)
        return [
            *(*java, f"-Xmx{self._heap}", *_FLAGS.split()),
            *(f"-javaagent:{jar}" for jar in jars.glob("jamm-*.jar")),
            f"-Djava.io.tmpdir={self.folder}/scratch",  # native code unpacked there outlives a kill
            f"-Dcassandra.storagedir={self.folder}",
            f"-Dcassandra.logdir={self.folder}/log",
            f"-Dcassandra.config={(conf / 'cassandra.yaml').as_uri()}",
            f"-Dlogback.configurationFile={conf / 'logback.xml'}",
            *("-cp", f"{jars}/*", "org.apache.cassandra.service.CassandraDaemon"),
        ]

    def _await_answer(self, begin: int) -> None:
        deadline = time.monotonic() + 180
        while not _answers(self.host, self.port):
            if self.running and time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            how = "gave no answer in time" if self.running else "ended before it gave an answer"
            written = self.log.read_bytes()[begin:].decode(errors="replace")
            tail = "\n".join(written.splitlines()[-40:])
            what = f"Cassandra {self.version} {how} on port {self.port}. Its log ends:\n{tail}"
            raise CassandraDidNotStart(what, "Look for the first error in the lines above.")


def _answers(host: str, port: int) -> bool:
    """Whether the port speaks CQL, which comes later than that it is open."""
    try:
        with socket.create_connection((host, port), timeout=1) as connection:
            connection.sendall(_OPTIONS)
            return connection.recv(9)[4:5] == _SUPPORTED
    except OSError:
        return False


def _free_port() -> int:
    """Choose a port that, with the one above it, still is free when the node comes back.

    Those that the kernel would choose are not: it gives them to outgoing connections as well, even
    to a driver that knocks at the very port and then is connected to itself.
    """
    while True:
        port = 20_000 + 2 * secrets.randbelow(6_000)  # below where Linux and macOS choose from
        if _are_free(port):
            return port


def _are_free(port: int) -> bool:
    try:
        for number in (port, port + 1):
            socket.create_server((EmbeddedCassandra.host, number)).close()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True
