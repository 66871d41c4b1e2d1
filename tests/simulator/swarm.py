"""Swarm testing: each history draws which faults it may have, so that some have few, often.

A history that may have everything has much of nothing: one fault hides what another one would show.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tests.simulator.process import Fault

_IO_FAULTS = {
    "crashes": (Fault.CRASH_BEFORE, Fault.CRASH_AFTER),
    "lost answers": (Fault.REFUSED, Fault.ANSWER_LOST),
    "zombies": (Fault.STALL_BEFORE, Fault.STALL_AFTER),
    "late calls": (Fault.LATE,),
}
"""Faults at I/O calls, by the name under which a history draws them."""

FAULTS = (
    *_IO_FAULTS,
    "lost events",
    "poison rows",
    "stopped queries",
    "restarts",
    "standing drivers",
    "other flushers",
    "outages",
    "full disks",
    "clock jumps",
    "stale listings",
    "purges",
    "few records",
    "small windows",
    "trim delay",
    "budget",
    "repartitions",
    "restored backups",
    "clones",
    "restored targets",
    "checkpoints set back",
    "copies",
    "ledgers",
    "operators",
    "small segments",
    "several targets",
    "detached targets",
    "refused rows",
    "batch writer",
    "totals",
    "lists",
)
"""What a history may draw."""

_OTHER_LOGS = {"restored backups", "clones"}
_EXCLUDES = {
    "several targets": {
        *_OTHER_LOGS,
        "restored targets",
        "checkpoints set back",
        "ledgers",
        "copies",
    },
    # Totals name the last row that they have; a restored table has its own (rule 23).
    "totals": {*_OTHER_LOGS, "lists", "restored targets", "ledgers", "refused rows"},
    # A list is doubled where nothing says that it was sent: the ledger row is lost, or shadowed.
    "lists": {*_OTHER_LOGS, "ledgers", "refused rows"},
    # The quarantine is in the log alone: a restored log lacks what was refused since.
    "refused rows": _OTHER_LOGS,
}
"""What a history cannot have together: what came of it would be documented, and nothing could be judged."""


class Operation(NamedTuple):
    """What may be the next step of a history."""

    name: str
    fault: str | None
    """The fault that a history must have drawn; None: none."""
    weight: int
    act: Callable[[], None]
    is_possible: Callable[[], bool] = lambda: True
    """Whether it may be done now."""


_DETACHED = 0.7
"""How probable it is that some of several targets are detached."""


@dataclass(frozen=True)
class Swarm:
    """What one history may have."""

    faults: frozenset[str]
    steps: int
    io_fault: float
    """How probable a fault is at a turn."""

    @classmethod
    def drawn(cls, chance: random.Random, among: tuple[str, ...] = FAULTS) -> Swarm:
        """Draw a history's faults."""
        share = chance.choice((0.1, 0.25, 0.4))
        faults = frozenset(fault for fault in among if chance.random() < share)
        faults -= {"detached targets"}
        if "several targets" in faults and chance.random() < _DETACHED:
            faults |= {"detached targets"}
        for fault in [fault for fault in _EXCLUDES if fault in faults]:
            faults -= _EXCLUDES[fault] if fault in faults else set()
        if not faults & set(_IO_FAULTS):
            faults |= {chance.choice(list(_IO_FAULTS))}
        return cls(faults, chance.choice((10, 20, 30, 45)), chance.choice((0.05, 0.2, 0.4)))

    @property
    def io_faults(self) -> list[Fault]:
        """The faults at I/O calls that it may have."""
        return [
            fault for name, faults in _IO_FAULTS.items() if name in self.faults for fault in faults
        ]

    def __contains__(self, fault: object) -> bool:
        return fault in self.faults
