"""The course of a soak: kill, look that it goes on, kill again; in the end, compare."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from tests.soak.app import TABLE
from tests.soak.feed import Feed
from tests.spark.remains import processes
from wal_sink.testing.crash import Driver
from wal_sink.testing.oracle import Verdict, judge
from wal_sink.testing.servers.cassandra import EmbeddedCassandra
from wal_sink.wal.location import locate

KEYSPACE = "soak"

Victim = Literal["driver", "worker", "cassandra"]

_PATIENCE_S = 600.0
_LAST_PATIENCE_S = 360.0
"""How long the last run may stand still, or flush when its query has ended."""


class Outcome(NamedTuple):
    """What a soak found."""

    verdict: Verdict
    """Of the windows in the table, keys aside."""
    mixed: list[int]
    """Epochs whose rows are of more than one attempt."""
    kills: Counter[str]
    starts: int
    """Of the application: one for each death of a driver, and for each worker that took the query along."""
    epochs: int


class Soak:
    """One query, one node, and the thread that kills them.

    :param folder: an empty one.
    :param seed: of everything that is left to chance here; the timing of the machine is not.
    """

    application = "tests.soak.app"

    def __init__(
        self, folder: Path, seed: int, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._folder = folder
        self._checkpoint = folder / "checkpoint"
        self._random = random.Random(seed)
        self._say = say
        self._feed = self._source(folder / "source", seed)
        self._node = EmbeddedCassandra(folder / "cassandra")
        self._starts = 0

    def _source(self, folder: Path, seed: int) -> Feed:
        """Return what feeds the query."""
        return Feed(folder, seed)

    def run(self, victims: Sequence[Victim]) -> Outcome:
        """Kill the victims one after the other; let the query end; compare."""
        with self._node:
            self._node.create_keyspace(KEYSPACE)
            self._node.execute(TABLE.format(KEYSPACE))
            self._driver = self._start()
            try:
                with self._feed:
                    for number, victim in enumerate(victims, start=1):
                        self._wait()
                        where = f"epoch {self._checkpointed()}"
                        self._say(f"{number}/{len(victims)}: {victim}, {where}")
                        self._kill(victim)
                    self._wait()
            finally:
                self._driver.__exit__(None, None, None)
            self._feed.write()  # it moves the watermark; the batch without data after it closes windows
            self._read_the_rest()
            return self._outcome(Counter(victims))

    def _start(self, *, last: bool = False, **settings: bool) -> Driver:
        """Start the application.

        :param settings: more of its configuration, see `app`.
        """
        self._starts += 1
        config = self._folder / f"config-{self._starts}.json"
        config.write_text(
            json.dumps(
                {
                    "source": str(self._folder / "source"),
                    "checkpoint": str(self._checkpoint),
                    "port": self._node.port,
                    "keyspace": KEYSPACE,
                    "last": last,
                    **settings,
                }
            )
        )
        return Driver(
            ["-m", self.application, str(config)],
            self._folder / f"output-{self._starts}",
            environment=self._environment(),
            folder=Path(__file__).parents[2],
        )

    def _read_the_rest(self) -> None:
        """Run the application to the end of its source; on a busy machine that is hundreds of files."""
        with self._start(last=True) as last:
            reached, deadline = -1, 0.0
            while last.process.poll() is None:
                if (now := self._checkpointed()) > reached:
                    reached, deadline = now, time.monotonic() + _LAST_PATIENCE_S
                assert time.monotonic() < deadline, last.log()
                time.sleep(0.2)
            last.finish()

    def _environment(self) -> dict[str, str]:
        """Return what the application finds in its environment beside this process's."""
        return {}

    def _wait(self) -> None:
        """Wait until the query has gone on, mostly; start it again if it ended."""
        before = self._checkpointed()
        patient = self._random.random() < 0.8  # else it dies as it starts
        deadline = time.monotonic() + (_PATIENCE_S if patient else self._random.uniform(0, 8))
        while self._checkpointed() <= before and time.monotonic() < deadline:
            if self._driver.process.poll() is not None:
                self._driver = self._start()
            time.sleep(0.1)
        assert not patient or self._checkpointed() > before, self._driver.log()
        time.sleep(self._random.uniform(0, 2))

    def _kill(self, victim: Victim) -> None:
        if victim == "driver":
            self._driver.kill()
        elif victim == "worker":
            self._kill_worker()
        else:
            self._node.kill()
            time.sleep(self._random.uniform(0, 3))
            self._node.start()

    def _kill_worker(self) -> None:
        """SIGKILL one of Spark's Python processes: of the tasks, of the planner, or of `commit`."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            started = processes(self._driver.process.pid)
            workers = [pid for pid, command in started if "pyspark.daemon" in command]
            if workers:
                os.kill(self._random.choice(workers), signal.SIGKILL)
                return
            if self._driver.process.poll() is not None:
                return  # the query has failed meanwhile, and took its workers along
            assert time.monotonic() < deadline, "no worker to kill"
            time.sleep(0.02)

    def _checkpointed(self) -> int:
        return locate(str(self._checkpoint)).open_checkpoint().last_commit()

    def _outcome(self, kills: Counter[str]) -> Outcome:
        rows = self._node.execute(
            f"SELECT opened, device, events, total, attempt, epoch FROM {KEYSPACE}.windows"
        )
        attempts = defaultdict(set)
        for row in rows:
            attempts[row.epoch].add(row.attempt)
        return Outcome(
            verdict=judge(self._feed.closed(), [tuple(row)[:4] for row in rows]),
            mixed=sorted(epoch for epoch, found in attempts.items() if len(found) > 1),
            kills=kills,
            starts=self._starts,
            epochs=self._checkpointed() + 1,
        )
