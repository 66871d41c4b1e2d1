"""The soak of features: kills processes of one query with nine features, then compares each cell.

The features: `batch_writer` in output mode update; upserts and deletes; `cassandra.writeMode=update`; times
of expiry; quarantine by tasks and by the flush; text as varint and decimal; binary as uuid; renamed columns;
an epoch column. The table gets a new column while the query runs.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import wal_sink
from tests.soak.cells import (
    TABLE_KEY,
    CellVerdict,
    Expected,
    Found,
    compare,
    expected,
    logged,
    refused_by_server,
)
from tests.soak.changes import MOST_LIFE_S, Changes
from tests.soak.features_app import GROWTH, TABLE
from tests.spark.application import Application
from tests.spark.remains import processes
from wal_sink.demo.cassandra import EmbeddedCassandra
from wal_sink.demo.local_spark import Driver
from wal_sink.wal.location import locate

KEYSPACE = "soak"
_FAULTS = (*("driver",) * 3, *("worker",) * 3, *("cassandra",) * 2, *("pause",) * 2)
"""The faults, with their relative frequency."""
_GROWS_AT = 0.4
"""The fraction of the time after which the table gets a new column."""
_PATIENCE_S = 600.0
_LAST_PATIENCE_S = 360.0
"""The maximum time in which the last run must complete an epoch."""


class FeaturesOutcome(NamedTuple):
    """The result of the soak."""

    cells: CellVerdict
    wanted: Expected
    quarantined: int
    """The number of rows in `refused/`."""
    deaths: Counter[str]
    starts: int

    @property
    def exact(self) -> bool:
        """Return True if every cell is right, and the log has each change of the source once."""
        wanted = self.wanted
        in_place = self.quarantined == wanted.bad + wanted.late
        return self.cells.exact and not (wanted.wrong or wanted.mixed) and in_place


class FeaturesSoak:
    """The query, its node, and the faults.

    :param folder: an empty folder.
    :param seed: determines all random choices, but not the timing of the machine.
    """

    def __init__(
        self, folder: Path, seed: int, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._checkpoint = folder / "checkpoint"
        self._random = random.Random(seed)
        self._say = say
        self._feed = Changes(folder / "source", seed)
        self._node = EmbeddedCassandra(folder / "cassandra")
        config = {
            "source": str(folder / "source"),
            "checkpoint": str(self._checkpoint),
            "port": self._node.port,
            "keyspace": KEYSPACE,
        }
        self._application = Application(folder, "tests.soak.features_app", config)
        self._starts = 0
        self._grown = False

    def run_for(self, seconds: float) -> FeaturesOutcome:
        """Inject faults for some seconds; let the query end; compare."""
        until_s = time.monotonic() + seconds

        def next_fault() -> str | None:
            left_s = until_s - time.monotonic()
            if not self._grown and left_s < (1 - _GROWS_AT) * seconds:
                return "growth"
            return self._random.choice(_FAULTS) if left_s > 0 else None

        return self._run(next_fault)

    def run_through(self, deaths: Sequence[str]) -> FeaturesOutcome:
        """Inject these faults one after the other; let the query end; compare."""
        waiting = list(deaths)
        return self._run(lambda: waiting.pop(0) if waiting else None)

    def _run(self, next_fault: Callable[[], str | None]) -> FeaturesOutcome:
        deaths: Counter[str] = Counter()
        with self._node:
            self._node.create_keyspace(KEYSPACE)
            self._execute(TABLE)
            self._driver = self._start()
            try:
                with self._feed:
                    while (fault := next_fault()) is not None:
                        self._wait()
                        self._say(f"{fault}, epoch {self._checkpointed()}")
                        self._inject(fault)
                        deaths[fault] += 1
                    self._wait()
            finally:
                self._driver.__exit__()
            self._feed.write()
            self._read_the_rest()
            time.sleep(MOST_LIFE_S + 2)
            return self._compare(deaths)

    def _start(self, *, last: bool = False) -> Driver:
        """Start the application.

        :param last: True to run it to the end of its source.
        """
        self._starts += 1
        return self._application.start(last=last, grown=self._grown)

    def _read_the_rest(self) -> None:
        """Run the application to the end of its source, which may be hundreds of files."""
        with self._start(last=True) as last:
            reached, deadline = -1, 0.0
            while last.process.poll() is None:
                if (now := self._checkpointed()) > reached:
                    reached, deadline = now, time.monotonic() + _LAST_PATIENCE_S
                assert time.monotonic() < deadline, last.log()
                time.sleep(0.2)
            last.finish()

    def _wait(self) -> None:
        """Wait, usually until the query has completed an epoch."""
        patient = self._random.random() < 0.8  # otherwise the query is killed while it starts
        patience_s = _PATIENCE_S if patient else self._random.uniform(0, 8)
        assert self._has_completed(1, patience_s) or not patient, self._driver.log()
        time.sleep(self._random.uniform(0, 2))

    def _has_completed(self, epochs: int, patience_s: float = _PATIENCE_S) -> bool:
        """Return True if the query completes `epochs` more epochs; start it again if it has ended."""
        goal, deadline = self._checkpointed() + epochs, time.monotonic() + patience_s
        while self._checkpointed() < goal:
            if time.monotonic() > deadline:
                return False
            if self._driver.process.poll() is not None:
                self._driver = self._start()
            time.sleep(0.1)
        return True

    def _inject(self, fault: str) -> None:
        if fault == "growth":
            self._grow()
        elif fault == "pause":
            self._node.pause()
            time.sleep(self._random.uniform(2, 20))
            self._node.resume()
        elif fault == "driver":
            self._driver.kill()
        elif fault == "worker":
            self._kill_worker()
        else:
            self._node.kill()
            time.sleep(self._random.uniform(0, 3))
            self._node.start()

    def _kill_worker(self) -> None:
        """Kill one of Spark's Python workers: of a task, of the planner, or of `commit`."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            started = processes(self._driver.process.pid)
            workers = [pid for pid, command in started if "pyspark.daemon" in command]
            if workers:
                os.kill(self._random.choice(workers), signal.SIGKILL)
                return
            if self._driver.process.poll() is not None:
                return  # the query has failed, and its workers have ended
            assert time.monotonic() < deadline, "no worker to kill"
            time.sleep(0.02)

    def _checkpointed(self) -> int:
        return locate(str(self._checkpoint)).open_checkpoint().last_commit()

    def _grow(self) -> None:
        """Add the column and the index, and wait for three more epochs.

        An epoch that began before has no long note, and the next one may have only older files. So the third
        epoch has a note that the index refuses.
        """
        assert self._has_completed(1), self._driver.log()
        self._execute(*GROWTH)
        self._feed.long_notes = True
        assert self._has_completed(3), self._driver.log()
        self._grown = True

    def _execute(self, *statements: str) -> None:
        for statement in statements:
            self._node.session().execute(statement.format(KEYSPACE), timeout=120)

    def _compare(self, deaths: Counter[str]) -> FeaturesOutcome:
        status = wal_sink.status(str(self._checkpoint))
        assert status.pending_epochs == 0, status
        (log,) = (item.parent for item in self._checkpoint.glob("wal_sink/*/state"))
        wanted = expected(self._feed.changes, list(logged(log)), refused_by_server(log))
        now_s = time.time()
        return FeaturesOutcome(
            cells=compare(wanted, self._found(), now_s),
            wanted=wanted,
            quarantined=status.quarantined_rows,
            deaths=deaths,
            starts=self._starts,
        )

    def _found(self) -> Found:
        """Read every cell, with its write timestamp and its TTL."""
        described = self._node.execute(
            "SELECT column_name, kind FROM system_schema.columns"
            f" WHERE keyspace_name = '{KEYSPACE}' AND table_name = 'customers'"
        )
        names = [row.column_name for row in described if row.kind == "regular"]
        columns = [f"{n}, writetime({n}) AS us_{n}, ttl({n}) AS ttl_{n}" for n in names]
        select = f"SELECT {', '.join((*TABLE_KEY, *columns))} FROM {KEYSPACE}.customers"
        began_s = time.time()
        rows = self._node.execute(select)
        ended_s = time.time()
        return {
            tuple(getattr(row, key) for key in TABLE_KEY): {
                name: (
                    getattr(row, name),
                    getattr(row, f"us_{name}"),
                    _ends(getattr(row, f"ttl_{name}"), began_s, ended_s),
                )
                for name in names
                if getattr(row, name) is not None
            }
            for row in rows
        }


def _ends(ttl_s: int | None, began_s: float, ended_s: float) -> tuple[int, int] | None:
    """Return the first and last second at which a cell may expire, from its TTL; None without a TTL."""
    return None if ttl_s is None else (int(began_s) + ttl_s, int(ended_s) + ttl_s)
