"""Crash at the k-th operation, for k = 0, 1, 2, … until a run finishes uncrashed; then recover.

Two seams are wrapped: the log's state backend, as the run and the flusher use it, and the target. Recovery is
the real code: a new run, with other rows for what it computes again, and a new flusher.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from itertools import count, pairwise
from typing import Literal

import pytest

from state_backends import open_backend
from tests.protocol.engine import Rows, World
from wal_sink import layout
from wal_sink.testing.faults import Crash, Faults

EPOCHS = 4
"""Epoch 2 has no rows; every other one updates a key of the epoch before, and adds one of its own."""


def partitions(epoch: int, run: str) -> list[Rows]:
    """Rows as a non-deterministic query computes them: keys of their own in each attempt."""
    if epoch == 2:
        return []
    return [[("shared", epoch), (f"{epoch}-{run[:8]}", epoch)], [(f"{epoch}-{run[:8]}-b", epoch)]]


def script(world: World, run_faults: Faults, flush_faults: Faults) -> None:
    """Run all epochs, flushing after each, as far as the process lives."""
    run = world.run(run_faults)
    while run.next < EPOCHS:
        run.batch(*partitions(run.next, run.run_id))
        world.flush(flush_faults)


def crash(world: World, act: Callable[[], None]) -> bool:
    """Run `act`; True when it died."""
    try:
        act()
    except Crash:
        return True
    return False


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("seam", ["run", "flusher"])
def test_every_crash_recovers(seam: str, when: Literal["before", "after"]) -> None:
    """No row lost, none doubled, none of an attempt that Spark did not keep, and nothing left behind."""
    died = 0
    for k in count():
        name = uuid.uuid4().hex
        world = World(open_backend(f"memory://{name}/ck"), open_backend(f"memory://{name}/log"))
        faults = Faults(at=k, when=when)
        run_faults, flush_faults = (faults, Faults()) if seam == "run" else (Faults(), faults)
        crashed = crash(world, lambda w=world, r=run_faults, f=flush_faults: script(w, r, f))  # type: ignore[misc]
        assert crashed == (faults.injected is not None), "the harness injects what it means to"
        committed_only(world)
        script(world, Faults(), Faults())
        world.flush()
        assert world.table() == world.expected(), faults.injected
        assert_trimmed(world, faults)
        assert_timestamps_grow(world)
        if not crashed:
            break
        died += 1
    assert died > 40, "the script is too short to mean something"


def committed_only(world: World) -> None:
    """Right after the crash: no row is visible that Spark has not committed."""
    allowed = {key for rows in world.committed.values() for key in rows}
    assert set(world.table()) <= allowed


def assert_trimmed(world: World, faults: Faults) -> None:
    """Nothing needed is missing, and nothing of a flushed epoch is left."""
    left = {path.split("/")[0] for path in world.log_backend.list()}
    assert left == {"flushed", "log.json", "plans", "runs", "tickets"}, faults.injected
    recorded = world.log.flushed_since(-1)
    assert [record.epoch for record in recorded] == list(range(EPOCHS))
    assert world.log_backend.list(layout.SEGMENTS) == []


def assert_timestamps_grow(world: World) -> None:
    """Over epochs, write timestamps only grow."""
    records = world.log.flushed_since(-1)
    for older, newer in pairwise(records):
        assert newer.base_us > older.base_us + max(older.rows, 1) - 1
