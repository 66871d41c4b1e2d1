"""Swarm testing: each history draws which faults it may have, so that some have few, often.

A history that may have everything has much of nothing: one fault hides what another one would show.
"""

from __future__ import annotations

import random
from collections import Counter
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
    "refused rows",
    "batch writer",
    "migrated queries",
    "lists",
)
"""What a history may draw."""

_ACTING = {
    "restored backups",
    "clones",
    "restored targets",
    "checkpoints set back",
    "ledgers",
    "operators",
}
"""The faults by which others change what is flushed, or what says so."""

_ACTS = (
    "backup restored",
    "clone",
    "target restored",
    "checkpoint set back",
    "ledger lost",
    "ledger shadowed",
    "operator: rewind",
    "operator: skip",
)
"""What they do, as it is counted."""

_MOST_ACTS = (1, 2, 2, 3)
"""How often they may act on a history, drawn. Of acts upon acts, much is documented as lost, and little can
be judged."""


def acted(counts: Counter[str]) -> int:
    """Return how often others have acted on a history; a command that was refused did not.

    :param counts: how often each thing happened.
    """
    return sum(counts[what] - counts[f"{what} refused"] for what in _ACTS)


_THEMES = (
    {"lists", "zombies", "other flushers"},
    {"lists", "crashes", "other flushers", "lost answers"},
    {"refused rows", "crashes", "operators", "zombies"},
    {"refused rows", "lists", "crashes", "other flushers"},
    {"several targets", "crashes", "trim delay", "small windows"},
    {"several targets", "zombies", "few records", "other flushers"},
    {"several targets", "standing drivers", "zombies", "purges"},
    {"several targets", "budget", "trim delay", "operators", "crashes"},
    {"restored backups", "restarts", "crashes", "operators"},
    {"restored backups", "repartitions", "checkpoints set back", "purges"},
    {"restored targets", "operators", "zombies", "trim delay"},
    {"ledgers", "operators", "zombies", "other flushers"},
    {"checkpoints set back", "operators", "crashes"},
    {"checkpoints set back", "operators", "zombies", "standing drivers"},
    {"few records", "operators", "zombies", "other flushers"},
    {"few records", "standing drivers", "zombies"},
    {"budget", "standing drivers", "zombies", "lost events"},
    {"budget", "crashes", "restarts", "operators"},
    {"repartitions", "purges", "crashes", "operators"},
    {"repartitions", "migrated queries", "restarts", "crashes"},
    {"operators", "trim delay", "crashes", "zombies"},
    {"standing drivers", "zombies", "lost events", "late calls", "other flushers"},
    {"several targets", "standing drivers", "zombies", "other flushers"},
    {"several targets", "operators", "crashes"},
    {"lists", "restarts", "zombies", "crashes"},
    {"restored targets", "operators", "crashes", "trim delay"},
    {"operators", "few records", "trim delay", "zombies", "other flushers"},
    {"restored backups", "repartitions", "operators"},
    {"checkpoints set back", "operators", "crashes", "restarts"},
    {"refused rows", "operators", "crashes", "clock jumps"},
    {"clock jumps", "operators", "zombies"},
    {"clock jumps", "operators", "trim delay", "crashes"},
    {"operators", "crashes", "other flushers", "outages"},
    {"several targets", "migrated queries", "crashes"},
    {"several targets", "checkpoints set back", "operators", "crashes"},
    {"several targets", "operators", "trim delay", "zombies"},
    {"checkpoints set back", "budget", "operators", "crashes"},
    {"lists", "zombies", "other flushers", "standing drivers"},
    {"refused rows", "operators", "trim delay", "zombies"},
    {"refused rows", "operators", "trim delay", "crashes"},
    {"budget", "trim delay", "operators", "other flushers"},
    {"standing drivers", "other flushers", "operators", "zombies"},
)
"""Faults that show more together than by chance: some histories have all of one line."""

_THEMED = 0.6
"""How probable it is that a history has a theme."""

_OTHER_LOGS = {"restored backups", "clones"}
_EXCLUDES = {
    "several targets": {
        *_OTHER_LOGS,
        "restored targets",
        "ledgers",
        "copies",
    },
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

    @property
    def acts(self) -> bool:
        """Whether others than drivers and flushers act by it."""
        return self.fault in _ACTING


_RETAINED = 0.5
"""How probable it is that the log keeps what operators may have flushed again."""


@dataclass(frozen=True)
class Swarm:
    """What one history may have."""

    faults: frozenset[str]
    steps: int
    io_fault: float
    """How probable a fault is at a turn."""
    most_acts: int
    """How often others than drivers and flushers may act on it."""

    @classmethod
    def drawn(cls, chance: random.Random, among: tuple[str, ...] = FAULTS) -> Swarm:
        """Draw a history's faults."""
        share = chance.choice((0.1, 0.25, 0.4))
        faults = frozenset(fault for fault in among if chance.random() < share)
        if chance.random() < _THEMED:
            theme = frozenset(chance.choice(_THEMES)) & frozenset(among)
            excluded = {each for fault in theme for each in _EXCLUDES.get(fault, ())}
            faults = theme | frozenset(
                each for each in faults - excluded if not _EXCLUDES.get(each, set()) & theme
            )
        if "operators" in faults and chance.random() < _RETAINED:
            faults |= {"trim delay"} & frozenset(among)
        for fault in [fault for fault in _EXCLUDES if fault in faults]:
            faults -= _EXCLUDES[fault] if fault in faults else set()
        if not faults & set(_IO_FAULTS):
            faults |= {chance.choice(list(_IO_FAULTS))}
        steps, io_fault = chance.choice((15, 30, 45, 70)), chance.choice((0.05, 0.2, 0.4))
        return cls(faults, steps, io_fault, chance.choice(_MOST_ACTS))

    @property
    def io_faults(self) -> list[Fault]:
        """The faults at I/O calls that it may have."""
        return [
            fault for name, faults in _IO_FAULTS.items() if name in self.faults for fault in faults
        ]

    def __contains__(self, fault: object) -> bool:
        return fault in self.faults
