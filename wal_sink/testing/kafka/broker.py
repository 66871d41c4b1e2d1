"""Runs a real Kafka broker as a child process, for tests: no Docker, no service."""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from wal_sink.errors import WalSinkError
from wal_sink.testing import free_port, maven

VERSION = "4.1.0"
HOST = "127.0.0.1"
_PORTS = 2  # for clients, and the next one for the controller
_START_S = 90.0


class KafkaDidNotStart(WalSinkError):
    """The broker did not come up; the text ends with the last lines of its log."""

    exit_code = 4


class Broker:
    """One Kafka broker on 127.0.0.1 that is its own controller (KRaft), with durable data.

    Java 17 is needed. The jars are downloaded at the first start of a version, see `wal_sink.testing.maven`.
    On Linux the broker dies with this process, however that one ends.

    :param settings: of server.properties; they override the choices made here.
    """

    def __init__(self, settings: Mapping[str, object] = {}) -> None:
        self.port = free_port.choose(HOST, _PORTS)
        self.address = f"{HOST}:{self.port}"
        self._temporary = tempfile.TemporaryDirectory(prefix="wal_sink-kafka-")
        self.folder = Path(self._temporary.name)
        self.log = self.folder / "kafka.log"
        self._settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{HOST}:{self.port + 1}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{HOST}:{self.port + 1}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.folder / "data"),
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 1,
            # How soon a transaction ends whose time is over: 10 s is what brokers do.
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
            "auto.create.topics.enable": "false",
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None
        # The broker dies with the thread that starts it, so this one lives as long as the object.
        self._starter = ThreadPoolExecutor(1, "kafka-broker")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> Self:
        """Start the broker unless it runs, and return when it answers.

        :raises KafkaDidNotStart: it ended, or gave no answer.
        :raises JavaNotFound, JarsNotResolved: see `wal_sink.testing.maven`.
        """
        if self._process is None or self._process.poll() is not None:
            try:
                self._launch()
                self._await_answer()
            except BaseException:
                self.kill()
                raise
        return self

    def kill(self) -> None:
        """End the process at once, as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Freeze the process: connections stay open and nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Go on after `pause`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End the broker for good, and remove its data."""
        self.kill()
        self._starter.shutdown()
        self._temporary.cleanup()

    def create_topic(
        self, name: str, partitions: int = 1, settings: Mapping[str, str] = {}
    ) -> None:
        """Create a topic; return when it is there."""
        from confluent_kafka.admin import NewTopic  # noqa: PLC0415 -- a broker needs no client

        new = NewTopic(name, partitions, 1, config=dict(settings))
        admin = self._admin()  # which has to live as long as its request
        (future,) = admin.create_topics([new], operation_timeout=30).values()
        future.result()
        while name not in admin.list_topics(timeout=30).topics:  # the controller has it already
            time.sleep(0.02)

    def records(
        self, topic: str, isolation: str = "read_committed"
    ) -> list[tuple[bytes | None, bytes | None]]:
        """Read a topic from its beginning to its end; return key and value of each record."""
        from confluent_kafka import Consumer, TopicPartition  # noqa: PLC0415 -- as above

        consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": uuid.uuid4().hex,
                "isolation.level": isolation,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
            }
        )
        found = []
        try:
            partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
            consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
            left = set(partitions)
            while left:
                message = consumer.poll(30)
                assert message is not None, f"{topic} does not answer"
                if message.error():
                    left.discard(message.partition())
                else:
                    found.append((message.key(), message.value()))
        finally:
            consumer.close()
        return found

    def _admin(self) -> Any:
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415 -- as above

        return AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def _launch(self) -> None:
        java = maven.java_command("17")
        artifact = maven.Artifact("org.apache.kafka", "kafka_2.13", VERSION)
        jars = maven.jars(artifact, f"kafka-{VERSION}", java)
        command = [*java, "-Xmx384m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*"]
        properties = self.folder / "server.properties"
        if not properties.exists():
            lines = [f"{name}={value}\n" for name, value in self._settings.items()]
            properties.write_text("".join(lines))
            cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            self._format([*command, "kafka.tools.StorageTool", "format", "-t", cluster])
        with self.log.open("ab") as log:
            self._process = self._starter.submit(
                subprocess.Popen,
                [*command, "kafka.Kafka", str(properties)],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "JAVA_TOOL_OPTIONS": ""},
                start_new_session=True,
            ).result()

    def _format(self, command: list[str]) -> None:
        properties = str(self.folder / "server.properties")
        # In a thread of the broker's: the process is tied to the one that starts it.
        done = self._starter.submit(
            subprocess.run,
            [*command, "-c", properties],
            capture_output=True,
            text=True,
            check=False,
        ).result()
        if done.returncode:
            raise KafkaDidNotStart(
                f"Kafka's folder could not be made: {done.stdout}{done.stderr}", "See what it says."
            )

    def _await_answer(self) -> None:
        assert self._process is not None
        until_s = time.monotonic() + _START_S
        admin = self._admin()
        while True:
            with contextlib.suppress(Exception):
                admin.list_topics(timeout=1)
                return
            if self._process.poll() is not None or time.monotonic() > until_s:
                tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])
                raise KafkaDidNotStart(
                    f"Kafka {VERSION} on port {self.port} gave no answer. Its log ends:\n{tail}",
                    "Look for the first error in the lines above.",
                )
