"""Runs a real Cassandra node as a child process, for tests and demonstrations: no Docker, no service."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from wal_sink.testing import free_port, maven
from wal_sink.testing.cassandra.node import (
    QUICK_START,
    CassandraDidNotStart,
    CommitlogSync,
    Node,
    cassandra_yaml,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CassandraDidNotStart", "EmbeddedCassandra"]

VERSION = "5.0.9"
_FLAGS = """
    -ea -Xss256k -XX:+ExitOnOutOfMemoryError -Djava.net.preferIPv4Stack=true
    -Djdk.attach.allowAttachSelf=true -Dio.netty.tryReflectionSetAccessible=true
    -Dcassandra-foreground=yes
"""
_LOGBACK = """\
<configuration><appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
  <encoder><pattern>%-5level [%thread] %date{ISO8601} %F:%L - %msg%n</pattern></encoder>
</appender><root level="INFO"><appender-ref ref="OUT"/></root></configuration>
"""
_PORTS = 2  # for CQL, and the next one for what nodes say to each other


class EmbeddedCassandra(Node):
    """One Cassandra node on 127.0.0.1, in a process of its own, with durable data.

    Java 17 is needed. The jars are downloaded at the first start of a version and kept in the
    user's cache folder. On Linux the node dies with this process, however that one ends. `start`
    also raises `JavaNotFound` and `JarsNotResolved`, see `wal_sink.testing.maven`. Java gets
    what the environment's `JVM_EXTRA_OPTS` says as well, as it does from Cassandra's own scripts.

    :param folder: where data, commit log, log and configuration live; it is kept, and a later node
        goes on from it. None: a temporary one, removed by `close`.
    :param version: of `org.apache.cassandra:cassandra-all`.
    :param heap: the most that the Java heap grows to, in Java's notation.
    :param commitlog_sync: `batch` acknowledges a write when it is on the disk; `periodic`,
        Cassandra's default, up to 10 seconds earlier.
    :param settings: entries of cassandra.yaml; they override the choices made here.
    """

    host = "127.0.0.1"

    def __init__(
        self,
        folder: Path | str | None = None,
        *,
        version: str = VERSION,
        heap: str = "512m",
        commitlog_sync: CommitlogSync = "batch",
        settings: Mapping[str, object] = {},
    ) -> None:
        super().__init__(f"Cassandra {version}", self.host, free_port.choose(self.host, _PORTS))
        self._temporary = None
        if folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="wal_sink-cassandra-")
            folder = self._temporary.name
        self.folder = Path(folder).absolute()
        self.log = self.folder / "log" / "cassandra.log"  # what it prints, at all its starts
        self.version = version
        self._heap = heap
        yaml = cassandra_yaml(
            commitlog_sync, rpc_address=self.host, port=self.port, storage_port=self.port + 1
        )
        self._settings = {**yaml, **settings}
        self._process: subprocess.Popen[bytes] | None = None
        self._begin = 0  # where in the log the last start begins
        # The node dies with the thread that starts it, so this one lives as long as the object.
        self._starter = ThreadPoolExecutor(1, "embedded-cassandra")

    @property
    def running(self) -> bool:
        """Whether the process is there, be it paused."""
        return self._process is not None and self._process.poll() is None

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

    def _launch(self) -> None:
        command = self._command()
        if not free_port.are_free(self.host, self.port, _PORTS):
            what = f"Port {self.port} or {self.port + 1} was free before and is in use now."
            raise CassandraDidNotStart(what, "Find out what listens there, or make a new node.")
        with self.log.open("ab") as log:
            self._begin = log.tell()
            self._process = self._starter.submit(
                subprocess.Popen,
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the tests, which then stop the node
            ).result()

    def _printed(self) -> str:
        return self.log.read_bytes()[self._begin :].decode(errors="replace")

    def _alive(self) -> subprocess.Popen[bytes]:
        self._require_running()
        assert self._process is not None
        return self._process

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
            *(*java, f"-Xmx{self._heap}", *_FLAGS.split(), *QUICK_START.split()),
            *shlex.split(os.environ.get("JVM_EXTRA_OPTS", "")),
            *(f"-javaagent:{jar}" for jar in jars.glob("jamm-*.jar")),
            f"-Djava.io.tmpdir={self.folder}/scratch",  # native code unpacked there outlives a kill
            f"-Dcassandra.storagedir={self.folder}",
            f"-Dcassandra.logdir={self.folder}/log",
            f"-Dcassandra.config={(conf / 'cassandra.yaml').as_uri()}",
            f"-Dlogback.configurationFile={conf / 'logback.xml'}",
            *("-cp", f"{jars}/*", "org.apache.cassandra.service.CassandraDaemon"),
        ]
