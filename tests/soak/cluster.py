"""The soak of a cluster, whose processes are all killed and paused.

Spark on a standalone cluster reads a topic of Kafka into three nodes of Cassandra, PostgreSQL and Delta
Lake, from one log. Readers read each target all the time. At the end, each target must have exactly the
rows of the topic.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

from confluent_kafka import KafkaException, Producer

import wal_sink
from tests.deploy.cassandra_nodes import REPLICATION, CassandraCluster
from tests.deploy.cluster import Cluster, executors_of
from tests.soak.readers import CassandraStore, DeltaStore, PostgresqlStore, Reader, Store
from tests.spark.kafka_jars import kafka_jars
from tests.support.background import Background
from tests.support.class_archive import SPARK
from wal_sink.demo.kafka import Broker
from wal_sink.demo.local_spark import Driver
from wal_sink.demo.outcome import RowCounts, compare_rows
from wal_sink.demo.postgresql import Server
from wal_sink.demo.server import AnyServer, DidNotStart
from wal_sink.errors import WalSinkError
from wal_sink.progress.status import Status

VICTIMS = ("driver", "executor", "worker", "master", "Cassandra", "Kafka", "PostgreSQL")
KINDS = ("killed", "paused", "overtaken")
"""Faults of a process. An `overtaken` driver stalls until another driver has completed an epoch."""
FAULTS = [*((item, kind) for item in VICTIMS for kind in KINDS[:2]), ("driver", "overtaken")]
TARGETS = {"nodes": "Cassandra", "books": "PostgreSQL", "lake": "Delta Lake"}
"""The names of the targets in the query, with their titles."""

ROOT = Path(__file__).parents[2]
_TOPIC = "soak"
_BETWEEN_S, _DOWN_S = (2, 8), (1, 10)
"""The range of seconds between two faults, and the range of seconds that a fault lasts."""
_PATIENCE_S = 1_000.0
"""The maximum time in which the query must complete an epoch on a busy machine; 400 seconds were too few."""
_OVERTAKEN_S = 20.0
"""The maximum time in which an application that was overtaken may end by itself."""
_STARTS = 3
"""The number of attempts to start a server."""


class Fault(NamedTuple):
    """A fault of one process; the times are seconds since the start of the soak."""

    victim: str
    kind: str
    began_s: float
    ended_s: float


class Sample(NamedTuple):
    """The numbers of rows at one time."""

    at_s: float
    produced: int
    visible: Mapping[str, int]
    """The number of visible rows, by target."""


class TargetResult(NamedTuple):
    """The final rows of a target, and what its reader saw."""

    counts: RowCounts
    reads: int
    rows_read: int
    unanswered: int
    wrong: Sequence[str]


class ClusterOutcome(NamedTuple):
    """The result of the soak."""

    targets: Mapping[str, TargetResult]
    """The results, by target."""
    differ: int
    """The number of rows that are not the same in all targets: they are of different attempts."""
    aborted: int
    """The number of records in aborted transactions."""
    faults: Sequence[Fault]
    recovered_s: Sequence[float]
    """For each round, the seconds until all targets had a new epoch after the last fault."""
    starts: int
    endings: Counter[str]
    """The last lines of applications that ended by themselves, with their numbers."""
    errors: Counter[str]
    """The last errors of `status`, with the number of times that they were read."""
    samples: Sequence[Sample]

    @property
    def exact(self) -> bool:
        """Return True if each target has the topic's rows, of one attempt, and no reader saw a wrong row."""
        right = all(result.counts.exact and not result.wrong for result in self.targets.values())
        return right and not self.differ and all(f.counts.expected for f in self.targets.values())


class Feed(Background):
    """Writes numbers in transactions, and aborts every fifth transaction."""

    def __init__(self, broker: Broker) -> None:
        super().__init__("soak-feed")
        self._address = broker.address
        self.next = self.committed = 0

    def work(self) -> None:
        """Write transactions until the end; the last one is committed or aborted."""
        producer: Producer | None = None
        transactions = 0
        while producer is None or not self._left.wait(0.2):
            try:
                if producer is None:
                    producer = self._producer()
                producer.begin_transaction()
                numbers = range(self.next, self.next + 20)
                self.next += len(numbers)
                for number in numbers:
                    producer.produce(_TOPIC, str(number))
                transactions += 1
                if transactions % 5 == 0:
                    producer.flush(10)
                    producer.abort_transaction(10)
                else:
                    producer.commit_transaction(10)
                    self.committed += len(numbers)
            except KafkaException:
                producer = None  # the next producer aborts the open transaction

    def _producer(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self._address,
                "transactional.id": _TOPIC,
                "transaction.timeout.ms": 15_000,
                "log_level": 0,
            }
        )
        producer.init_transactions(15)
        return producer


class ClusterSoak:
    """All servers, the application, the readers and the faults; a context manager.

    :param folder: an empty folder.
    :param seed: determines the order of the faults, but not the timing of the machine.
    """

    def __init__(
        self, folder: Path, seed: int, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._folder = folder
        self._random = random.Random(seed)
        self._say = say
        self._checkpoint = str(folder / "checkpoint")
        self._driver: Driver | None = None
        self._drivers: list[Driver] = []
        self._busy: dict[object, Future[None]] = {}
        self._faults: list[Fault] = []
        self._samples: list[Sample] = []
        self._errors: Counter[str] = Counter()
        self._endings: Counter[str] = Counter()
        self._readers: dict[str, Reader] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._nodes = stack.enter_context(CassandraCluster())
            self._broker = stack.enter_context(Broker())
            self._books = stack.enter_context(Server())
            ours = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
            self._cluster = stack.enter_context(
                Cluster(self._folder / "cluster", workers=2, cores=2, environment=ours)
            )
            self._broker.create_topic(_TOPIC, 2)
            node = self._nodes.nodes[0]
            node.execute(f"CREATE KEYSPACE soak WITH replication = {REPLICATION}")
            node.execute(
                "CREATE TABLE soak.rows (bucket int, key uuid, number bigint, PRIMARY KEY (bucket, key))"
            )
            self._books.execute("CREATE TABLE rows (number bigint, bucket int, key uuid)")
            self._books.execute("CREATE INDEX ON rows (bucket)")
            self._config = self._folder / "config.json"
            self._config.write_text(json.dumps(self._configuration()))
            stack.callback(self._end_drivers)
            self._pool = stack.enter_context(ThreadPoolExecutor(8, "soak-repair"))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _end_drivers(self) -> None:
        for driver in self._drivers:
            driver.__exit__()

    def _configuration(self) -> dict[str, Mapping[str, str]]:
        jars = ":".join(map(str, kafka_jars()))
        return {
            "settings": {
                "spark.master": self._cluster.url,
                "spark.driver.extraClassPath": jars,
                "spark.executor.extraClassPath": jars,
                "spark.executor.extraJavaOptions": SPARK.executor_options,
                "spark.executor.memory": "512m",
                "spark.cores.max": "2",  # the other cores are for a driver that overtakes this one
                "spark.deploy.maxExecutorRetries": "-1",
            },
            "source": {
                "kafka.bootstrap.servers": self._broker.address,
                "kafka.isolation.level": "read_committed",
                "subscribe": _TOPIC,
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": "3000",
            },
            "options": {
                "checkpointLocation": self._checkpoint,
                "targets": ",".join(TARGETS),
                "nodes.target": "cassandra",
                "nodes.keyspace": "soak",
                "nodes.table": "rows",
                "nodes.cassandra.contactPoints": self._nodes.contact_points,
                "nodes.cassandra.port": str(self._nodes.port),
                "books.target": "postgresql",
                "books.postgresql.uri": self._books.uri,
                "books.table": "rows",
                "lake.target": "delta",
                "lake.delta.path": str(self._folder / "lake"),
                "lake.createTable": "true",
                # A flush job writes a larger window, such as one after an outage.
                "flush.distributedAboveBytes": "20000",
            },
        }

    def _stores(self) -> dict[str, Store]:
        hosts = self._nodes.contact_points.split(",")
        return {
            "nodes": CassandraStore(hosts, self._nodes.port, "soak.rows"),
            "books": PostgresqlStore(self._books.uri, "rows"),
            "lake": DeltaStore(str(self._folder / "lake")),
        }

    def run_for(self, seconds: float) -> ClusterOutcome:
        """Inject faults in rounds for some seconds, at least one round; let the query end; compare."""
        self._began_s = time.monotonic()
        self._feed = Feed(self._broker)
        self._start()
        recovered: list[float] = []
        with ExitStack() as stack:
            with self._feed:
                self._await_new_epoch()  # the table must exist before a reader reads it
                for name, store in self._stores().items():
                    self._readers[name] = stack.enter_context(Reader(name, store))
                until_s = time.monotonic() + seconds
                while not recovered or time.monotonic() < until_s:
                    self._round()
                    recovered.append(self._await_new_epoch())
                    self._say(f"{self._now():.0f} s: all went on after {recovered[-1]:.0f} s")
            return self._outcome(self._read_the_rest(), recovered)

    def _now(self) -> float:
        return time.monotonic() - self._began_s

    def _start(self) -> None:
        output = self._folder / f"output-{len(self._drivers) + 1}"
        command = ["-m", "tests.soak.cluster_app", str(self._config)]
        self._driver = Driver(command, output, folder=ROOT)
        self._drivers.append(self._driver)

    def _round(self) -> None:
        """Inject each fault once, in random order; then wait until all processes run again."""
        for victim, kind in self._random.sample(FAULTS, len(FAULTS)):
            self._wait(self._random.uniform(*_BETWEEN_S))
            self._inject(victim, kind)
        self._until(lambda: all(item.done() for item in self._busy.values()), "start servers again")
        for item in self._busy.values():
            item.result()

    def _inject(self, victim: str, kind: str) -> None:
        candidates: list[object] = []

        def there() -> bool:
            candidates[:] = [
                candidate
                for candidate in self._candidates(victim)
                if candidate not in self._busy or self._busy[candidate].done()
            ]
            return bool(candidates)

        self._until(there, f"have a {victim} to be {kind}")
        chosen = self._random.choice(candidates)
        self._say(f"{self._now():.0f} s: {victim} {kind}, {self._progress()}")
        began_s = self._now()
        try:
            repair = self._stop(chosen, kind, victim)
        except ProcessLookupError:  # the process has just ended
            return
        down_s = self._random.uniform(*_DOWN_S)
        fault = Fault(victim, kind, began_s, 0)
        self._busy[chosen] = self._pool.submit(self._repair, repair, down_s, fault)

    def _candidates(self, victim: str) -> Sequence[object]:
        """Return the servers or process ids from which the victim is chosen."""
        driver = self._driver
        assert driver is not None
        processes: dict[str, Callable[[], Sequence[object]]] = {
            "driver": lambda: [driver.process.pid],
            "executor": lambda: executors_of(self._cluster.worker_pids),
            "worker": lambda: self._cluster.worker_pids,
            "master": lambda: [self._cluster.master.pid],
            "Cassandra": lambda: self._nodes.nodes,
            "Kafka": lambda: [self._broker],
            "PostgreSQL": lambda: [self._books],
        }
        return processes[victim]()

    def _stop(self, chosen: object, kind: str, victim: str) -> Callable[[], object]:
        """Kill or pause a process; return the function that repairs it."""
        if isinstance(chosen, AnyServer):
            (chosen.kill if kind == "killed" else chosen.pause)()
            return (lambda: patiently(chosen)) if kind == "killed" else chosen.resume
        assert isinstance(chosen, int)
        send = os.killpg if victim == "driver" else os.kill
        if kind != "killed":
            send(chosen, signal.SIGSTOP)
        match victim, kind:
            case _, "paused":
                return lambda: send(chosen, signal.SIGCONT)
            case _, "overtaken":
                assert self._driver is not None
                return partial(self._wake, self._driver, self._overtake())
            case "worker", _:
                self._cluster.kill_worker(chosen)
            case "master", _:
                self._cluster.kill_master()
            case _:
                send(chosen, signal.SIGKILL)
        return lambda: None  # its supervisor starts another process

    def _overtake(self) -> int:
        """Start a second application while the first stalls; return the last completed epoch."""
        status = self._status()
        self._start()
        return status.checkpointed if status else -1

    def _wake(self, overtaken: Driver, last: int) -> None:
        """Wake an application when the second one has completed an epoch; kill it if it does not end.

        Spark waits forever for executors if the master has given the application's executors to another one.
        """
        end_s = time.monotonic() + _PATIENCE_S
        while (status := self._status()) is None or status.checkpointed <= last:
            assert time.monotonic() < end_s, f"the other one does not go on: {status}"
            time.sleep(0.5)
        os.killpg(overtaken.process.pid, signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            overtaken.process.wait(_OVERTAKEN_S)
            self._ended_by_itself(overtaken, "an application that was overtaken")
            return
        overtaken.kill()

    def _repair(self, repair: Callable[[], object], down_s: float, fault: Fault) -> None:
        time.sleep(down_s)
        with contextlib.suppress(ProcessLookupError):  # the process was killed meanwhile
            repair()
        self._faults.append(fault._replace(ended_s=self._now()))

    def _wait(self, seconds: float) -> None:
        """Wait for some seconds, and supervise the application meanwhile."""
        end_s = time.monotonic() + seconds
        while True:
            self._take_sample()
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(1, left_s))

    def _take_sample(self) -> None:
        """Take a sample; start the application again if it has ended."""
        assert self._driver is not None
        if (code := self._driver.process.poll()) is not None:
            if code != -signal.SIGKILL:
                self._ended_by_itself(self._driver, "the application")
            self._start()
        status = self._status()
        for item in status.targets if status else ():
            if item.last_error:
                self._errors[f"{item.target}: {item.last_error.splitlines()[0][:200]}"] += 1
        visible = {name: reader.visible for name, reader in self._readers.items()}
        self._samples.append(Sample(self._now(), self._feed.committed, visible))

    def _ended_by_itself(self, driver: Driver, what: str) -> None:
        lines = [line for line in driver.log().splitlines() if line.strip()]
        self._endings[f"{what}: {lines[-1][:200] if lines else ''}"] += 1
        self._say(f"{self._now():.0f} s: {what} ended by itself, {driver.output.name}")

    def _status(self) -> Status | None:
        try:
            return wal_sink.status(self._checkpoint)
        except WalSinkError:  # the query has not started
            return None

    def _progress(self) -> str:
        status = self._status()
        return f"epoch {status.checkpointed}, flushed {status.flushed}" if status else "no epoch"

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        end_s = time.monotonic() + _PATIENCE_S
        while not condition():
            assert self._driver is not None
            assert time.monotonic() < end_s, (
                f"it did not {what}: {self._status()}\n{self._driver.log()[-4_000:]}"
            )
            self._wait(0.5)

    def _await_new_epoch(self) -> float:
        """Wait until each target has a new epoch; return the seconds."""
        since_s = time.monotonic()
        status = self._status()
        newest = status.checkpointed if status else -1

        def reached() -> bool:
            now = self._status()
            return now is not None and bool(now.targets) and now.flushed > newest

        self._until(reached, "go on")
        return time.monotonic() - since_s

    def _read_the_rest(self) -> list[int]:
        """Let the query read the topic to its end and end normally; return the topic's numbers."""
        numbers = [int(value or b"") for _, value in self._broker.records(_TOPIC)]
        self._until(
            lambda: all(len(rows) >= len(numbers) for rows in self._read_all().values()),
            f"bring {len(numbers)} rows to each target",
        )
        assert self._driver is not None
        self._driver.process.terminate()
        self._driver.finish()
        return numbers

    def _read_all(self) -> dict[str, list[tuple[int, str]]]:
        return {name: reader.read_all(self._feed.next) for name, reader in self._readers.items()}

    def _outcome(self, numbers: list[int], recovered: list[float]) -> ClusterOutcome:
        for reader in self._readers.values():
            reader.end()
        rows = self._read_all()
        same = set.intersection(*map(set, rows.values()))
        targets = {
            name: TargetResult(
                compare_rows(numbers, [number for number, _ in rows[name]]),
                *(reader.reads, reader.rows_read, reader.unanswered, sorted(reader.wrong)),
            )
            for name, reader in self._readers.items()
        }
        return ClusterOutcome(
            targets=targets,
            differ=len(set.union(*map(set, rows.values())) - same),
            aborted=self._feed.next - len(numbers),
            faults=self._faults,
            recovered_s=recovered,
            starts=len(self._drivers),
            endings=self._endings,
            errors=self._errors,
            samples=self._samples,
        )


def patiently(server: AnyServer) -> None:
    """Start a server, in several attempts, since a start may time out on a busy machine.

    :raises DidNotStart: if the last attempt fails.
    """
    for _ in range(_STARTS - 1):
        with contextlib.suppress(DidNotStart):
            server.start()
            return
    server.start()
