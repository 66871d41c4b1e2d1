"""Two flushers of one query, of which one stands still in its flush while the other one does all."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from tests.protocol import raw
from tests.protocol.engine import Rows, World
from tests.protocol.interleave import two_flushers
from tests.protocol.test_crash_everywhere import EPOCHS


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
        turns = two_flushers(world, ((k,), ()))
        both += all(any(op.startswith("write ") for op in each.operations) for each in turns)
        stopped = turns[0].stopped_before
        raw.complete(world, EPOCHS, (k, stopped))
        world.forget()
        if not stopped:
            return both
    raise AssertionError("it never ends")
