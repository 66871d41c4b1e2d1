"""Runs a real Cassandra node as a child process, for tests and demonstrations: no Docker, no service."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from wal_sink.testing import maven
from wal_sink.testing.cassandra.node import (
    QUICK_START,
    CassandraDidNotStart,
    CommitlogSync,
    Node,
    cassandra_yaml,
)
from wal_sink.testing.java import java_command
from wal_sink.testing.servers.child import Child

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CassandraDidNotStart", "EmbeddedCassandra"]

VERSION = "5.0.9"
_FLAGS = """
    -ea -Xss256k -XX:+ExitOnOutOfMemoryError -Djava.net.preferIPv4Stack=true
    -Djdk.attach.allowAttachSelf=true -Dio.netty.tryReflectionSetAccessible=true
    -Dcassandra-foreground=yes
"""
_OPENED = """
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
    user's cache folder. On Linux the node dies with this process, however that one ends. `start`
    also raises `java.JavaNotFound` and `maven.JarsNotResolved`. Java gets what the environment's
    `JVM_EXTRA_OPTS` says as well, as it does from Cassandra's own scripts.

    :param folder: where data, commit log, log and configuration live; it is kept, and a later node
        goes on from it. None: a temporary one, removed by `close`.
    :param version: of `org.apache.cassandra:cassandra-all`.
    :param heap: the most that the Java heap grows to, in Java's notation.
    :param commitlog_sync: `batch` acknowledges a write when it is on the disk; `periodic`,
        Cassandra's default, up to 10 seconds earlier.
    :param settings: entries of cassandra.yaml; they override the choices made here.
    """

    ports = 2
    """For CQL, and the next one for what nodes say to each other."""

    def __init__(
        self,
        folder: Path | str | None = None,
        *,
        version: str = VERSION,
        heap: str = "512m",
        commitlog_sync: CommitlogSync = "batch",
        settings: Mapping[str, object] = {},
    ) -> None:
        super().__init__(f"Cassandra {version}", "cassandra", folder)
        self.version = version
        self._heap = heap
        yaml = cassandra_yaml(
            commitlog_sync, rpc_address=self.host, port=self.port, storage_port=self.port + 1
        )
        self._settings = {**yaml, **settings}

    def _command(self) -> list[str]:
        """Write the configuration and return the command that runs a node with it."""
        conf = self.folder / "conf"
        for folder in (conf, self.log.parent, self.folder / "scratch"):
            folder.mkdir(parents=True, exist_ok=True)
        (conf / "cassandra.yaml").write_text(json.dumps(self._settings, indent=1))
        (conf / "logback.xml").write_text(_LOGBACK)
        java = java_command("17", _OPENED.split())
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
