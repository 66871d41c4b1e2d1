"""What a commit and a look cost after many starts, and with many epochs that `wal.retention` keeps."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from state_backends import open_backend
from tests.benchmarks.bench import Bench
from tests.benchmarks.figure import Figure, at_most, figure
from tests.protocol.aged_log import let_age
from tests.protocol.engine import World
from wal_sink.protocol.next_step import Idle

_TIMES = 25
"""Commits and looks of each age."""


class Aged:
    """A query with a log of some age, and what it has taken.

    :param folder: an empty one.
    :param number: of starts, and of epochs that are kept.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self._folder = folder
        world = World(open_backend(f"{folder}/checkpoint"), open_backend(f"{folder}/log"))
        world.retention_s = 7 * 86_400.0
        let_age(world, starts=number, epochs=number, write=self._write)
        self._run, self._flusher = world.run(), world.flusher()
        self.commits_ms: list[float] = []
        self.looks_ms: list[float] = []
        self.measure()  # the first commit claims, and the first pass sweeps
        self.commits_ms.clear()
        self.looks_ms.clear()

    def measure(self) -> None:
        """Take the time of a commit, and of a look that finds nothing."""
        rows = [("k", len(self.commits_ms))]
        self._run.write_offsets()
        appended = self._run.tasks(rows)
        self.commits_ms.append(_milliseconds(lambda: self._run.commit(appended)))
        self._run.write_commit([rows])
        while not isinstance(self._flusher.run_once(), Idle):
            pass
        self.looks_ms.append(_milliseconds(self._flusher.run_once))

    def close(self) -> None:
        """End the flusher, and remove the log."""
        self._flusher.close()
        shutil.rmtree(self._folder)

    def _write(self, objects: Mapping[str, bytes]) -> None:
        for path, data in objects.items():  # not synced: there are hundreds of thousands
            file = self._folder / "log" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)


def age(bench: Bench) -> list[Figure]:
    """Time of a commit, and of a look that finds nothing, over the age of a log in a local folder."""
    logs = {}
    for number in bench.sizes.ages:
        bench.say(f"a log of {number:,} starts and as many epochs that are kept")
        logs[number] = Aged(bench.new_folder(), number)
    for _ in range(_TIMES):
        for log in logs.values():  # in turn, so that what else the machine does is in all figures
            log.measure()
    found = []
    for number, log in logs.items():
        log.close()
        what = f"after {number:,} starts, with {number:,} kept epochs"
        found += [
            figure(f"age: commit() {what}", log.commits_ms, "ms"),
            figure(f"age: a look {what}", log.looks_ms, "ms"),
        ]
    young, *_, old = logs.values()
    ages = f"{bench.sizes.ages[-1]:,} over {bench.sizes.ages[0]:,}"
    return [
        *found,
        figure(
            f"age: commit(), {ages}", _ratios(old.commits_ms, young.commits_ms), "x", at_most(2)
        ),
        figure(f"age: a look, {ages}", _ratios(old.looks_ms, young.looks_ms), "x", at_most(2)),
    ]


def _ratios(over: list[float], under: list[float]) -> list[float]:
    return [above / below for above, below in zip(over, under, strict=True)]


def _milliseconds(act: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    act()
    return 1_000 * (time.perf_counter() - began_s)
