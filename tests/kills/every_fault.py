"""A fault at the k-th operation, for k = 0, 1, 2, … until a run ends without one; then recovery.

Both seams are wrapped for both roles: the state backend of log and checkpoint, and the target. The real code
recovers: a new run, which computes other rows, and a new flusher. The checker `raw` reads the stores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from tests.protocol import raw
from tests.protocol.engine import Rows, World, flush, in_memory
from wal_sink.errors import WalSinkError
from wal_sink.testing.faults import AnswerLost, Crash, Faults, different_faults

EPOCHS = 4
"""Epoch 2 has no rows. Every other epoch updates a key of the epoch before, and adds keys of its own."""


def new_world() -> World:
    """Return a new query in memory. Each epoch has a segment with a file and an inlined segment."""
    world = World(*in_memory())
    world.inline = range(1, 100)
    return world


def partitions(epoch: int, run: str) -> list[Rows]:
    """Return the rows of one attempt: two with keys of their own, one with a key of all attempts."""
    if epoch == 2:
        return []
    mark = int(run[:6], 16) * EPOCHS + epoch
    return [[("shared", mark), (f"{epoch}-{run[:8]}", mark)], [(f"{epoch}-{run[:8]}-b", mark)]]


Compute = Callable[[int, str], list[Rows]]
"""Returns the partitions of an epoch as a run computes them."""


def script(
    world: World,
    run_faults: Faults,
    flush_faults: Faults,
    *,
    backlog: bool = False,
    compute: Compute = partitions,
) -> None:
    """Run all epochs until the process dies, and flush after each epoch, or after all in one window.

    An error stops Spark's query, and the operator starts it again. The flusher tries again by itself.
    """
    flusher = world.flusher(flush_faults)
    for _ in range(2):  # one fault, so one more start at most
        try:
            run = world.run(run_faults)
            while run.next < EPOCHS:
                run.batch(*compute(run.next, run.run_id))
                if not backlog:
                    flush(flusher)
            flush(flusher)
        except (OSError, WalSinkError):
            assert run_faults.injected
        else:
            return


When = Literal["before", "after", "answer lost"]


def every_fault(
    make_world: Callable[[], World], role: str, when: When, compute: Compute = partitions
) -> list[str]:
    """Inject a fault at every operation of a role, and recover; return the operations.

    A death after a read is the same as a death before it, so it happens once.
    """

    def until_the_fault(world: World, faults: Faults) -> bool:
        """Return True if the process has died."""
        run_faults, flush_faults = (faults, Faults()) if role == "run" else (Faults(), faults)
        backlog = role == "flusher of a backlog"
        try:
            script(world, run_faults, flush_faults, backlog=backlog, compute=compute)
        except Crash:
            world.end_sessions()
            return True
        return False

    whole, world = Faults(), make_world()
    assert not until_the_fault(world, whole)
    raw.complete(world, EPOCHS, "no fault")
    for k in different_faults(whole.operations, when):
        world = make_world()
        faults = fault(k, when)
        crashed = until_the_fault(world, faults)
        reason = (k, when, faults.injected)
        injected_as_meant(faults, k, when, crashed=crashed)
        raw.safe(world, reason)
        script(world, Faults(), Faults(), compute=compute)
        raw.complete(world, EPOCHS, reason)
        world.forget()
    return whole.operations


def fault(k: int, when: When) -> Faults:
    """Return the fault at the k-th operation."""
    error = AnswerLost if when == "answer lost" else Crash
    return Faults(at=k, when="before" if when == "before" else "after", error=error)


TARGET = (
    "finish ",
    "drain",
    "write ",
    "read ledger",
    "connect",
    "create ledger",
    "plan",
)


MAY_FAIL = ("read ", "create ", "size ", "input ", "write ", "drain", "finish ")
"""Operations that may fail without a fault: an object is missing or exists already, or the server refuses
rows."""


def hit_by(hit: list[str], *names: str) -> int:
    """Return how many of the operations have one of these names."""
    return sum(
        any(name == n or name.startswith(n + " ") for n in map(str.strip, names)) for name in hit
    )


def injected_as_meant(faults: Faults, k: int, when: str, *, crashed: bool) -> None:
    """Check that the k-th operation failed as intended, and that the process died or lived."""
    assert faults.injected is not None
    assert faults.operations[k] == faults.injected
    assert crashed == (when != "answer lost")
    if when == "before":
        assert not faults.took_effect
    elif not faults.injected.startswith(MAY_FAIL):
        assert faults.took_effect
    if crashed:
        assert len(faults.operations) == faults.begun, "nothing is done after death"
