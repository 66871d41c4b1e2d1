"""What a commit and a look cost after many starts, and with many epochs that `trim.delay` keeps."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from state_backends import open_backend
from tests.benchmarks.bench import Bench
from tests.benchmarks.figure import Figure, at_most, figure
from tests.protocol.aged_log import let_age
from tests.protocol.engine import World
from wal_sink.flush.flusher import Flusher
from wal_sink.protocol.steps import Rest

_TIMES = 15
"""Commits and looks of each age, of which the median counts."""


def age(bench: Bench) -> list[Figure]:
    """Time of a commit, and of a look that finds nothing, over the age of a log in a local folder."""
    found = []
    commits, looks = [], []
    for number in bench.sizes.ages:
        bench.say(f"a log of {number:,} starts and as many epochs that are kept")
        commit_ms, look_ms = _costs(bench.new_folder(), number)
        what = f"after {number:,} starts, with {number:,} kept epochs"
        found += [
            figure(f"age: commit() {what}", [commit_ms], "ms"),
            figure(f"age: a look {what}", [look_ms], "ms"),
        ]
        commits.append(commit_ms)
        looks.append(look_ms)
    ages = f"{bench.sizes.ages[-1]:,} over {bench.sizes.ages[0]:,}"
    return [
        *found,
        figure(f"age: commit(), {ages}", [commits[-1] / commits[0]], "x", at_most(2)),
        figure(f"age: a look, {ages}", [looks[-1] / looks[0]], "x", at_most(2)),
    ]


def _costs(folder: Path, number: int) -> tuple[float, float]:
    """Return milliseconds of a commit and of a look."""
    world = World(open_backend(f"{folder}/checkpoint"), open_backend(f"{folder}/log"))
    world.trim_delay_s = 7 * 86_400.0

    def write(objects: Mapping[str, bytes]) -> None:
        for path, data in objects.items():  # not synced: there are hundreds of thousands
            file = folder / "log" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)

    let_age(world, starts=number, epochs=number, write=write)
    run, flusher = world.run(), world.flusher()
    commits, looks = [], []
    for time_of in range(_TIMES + 1):
        run.write_offsets()
        appended = run.tasks([("k", time_of)])
        commit_ms = _milliseconds(lambda appended=appended: run.commit(appended))  # type: ignore[misc]
        run.write_commit([[("k", time_of)]])
        _flush(flusher)
        look_ms = _milliseconds(flusher.run_once)
        if time_of:  # the first commit claims, and the first pass sweeps
            commits.append(commit_ms)
            looks.append(look_ms)
    flusher.close()
    shutil.rmtree(folder)
    return statistics.median(commits), statistics.median(looks)


def _flush(flusher: Flusher) -> None:
    while not isinstance(flusher.run_once(), Rest):
        pass


def _milliseconds(act: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    act()
    return 1_000 * (time.perf_counter() - began_s)
