"""Two flushers of one query, of which one stands still in its flush while the other one does all."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from tests.protocol import raw
from tests.protocol.engine import Rows, World
from tests.protocol.interleave import Process, Turns, open_operations, take_turns
from tests.protocol.test_crash_everywhere import EPOCHS, flush
from wal_sink.flush.run_history import RunHistory


def every_stop(make_world: Callable[[], World], compute: Callable[[int, str], list[Rows]]) -> int:
    """Let one stop before its k-th operation, the other one flush all, and the first one go on; for each k.

    Judged whenever the turn changes, and at the end.

    :param compute: returns the partitions of an epoch as a run computes them.
    :returns: in how many of them both wrote rows.
    """
    both = 0
    for k in itertools.count():
        world = make_world()
        run = world.run()
        while run.next < EPOCHS:
            run.batch(*compute(run.next, run.run_id))
        counts = open_operations(world)
        processes = []
        for stops in ((k,), ()):
            turns = Turns(*stops, counts=counts)
            flusher = world.flusher(turns, RunHistory())
            processes.append(Process(turns, lambda _, flusher=flusher: flush(flusher)))  # type: ignore[misc]
        first, second = processes
        take_turns(first, second, lambda: raw.safe(world, k))  # noqa: B023 -- it is called at once
        wrote = [any(op.startswith("write ") for op in p.turns.operations) for p in processes]
        both += all(wrote)
        raw.complete(world, EPOCHS, (k, first.turns.stopped_before))
        world.forget()
        if not first.turns.stopped_before:
            return both
    raise AssertionError("it never ends")
