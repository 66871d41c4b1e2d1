"""The hosts, stores and targets of one history, and its faults (swarm testing).

Each history draws a few kinds of faults: if a history had all kinds, one fault would hide what another shows.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

from tests.simulator.checker import Checker, Truth
from tests.simulator.machine import MACHINE
from tests.simulator.process import Fault, Host, Process
from tests.simulator.target import KINDS, Database, SimulatedTarget
from tests.simulator.trace import Trace
from tests.simulator.volume import Files, Mount, Volume
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.flush.pipeline import Pipeline
from wal_sink.model.ledger import SENDINGS, LedgerRow, ledger_key
from wal_sink.protocol.retention import Retention
from wal_sink.wal.store import LogStore

if TYPE_CHECKING:
    from tests.simulator.driver import Driver, FlusherThread

IO_FAULTS = {
    "crashes": (Fault.CRASH_BEFORE, Fault.CRASH_AFTER),
    "lost answers": (Fault.REFUSED, Fault.ANSWER_LOST),
    "stalls": (Fault.STALL_BEFORE, Fault.STALL_AFTER),
    "late calls": (Fault.LATE,),
}
"""The faults at I/O calls, by name."""

FAULTS = (
    *IO_FAULTS,
    "two drivers",
    "other flushers",
    "outages",
    "full disks",
    "clock jumps",
    "purges",
    "budget",
    "small segments",
    "several targets",
    "refused rows",
    "batch writer",
    "lists",
    "retention",
    "poison rows",
    "power losses",
    "restored targets",
    "restored queries",
    "restored logs",
    "checkpoints set back",
    "moves",
    "given-up epochs",
    "changed targets",
)
"""All faults that a history may draw."""

_EXCLUDES = {
    # `commits/` then does not show whose attempt is applied, see docs/limits.md.
    "two drivers": {
        "power losses",
        "restored queries",
        "restored logs",
        "checkpoints set back",
        "moves",
    },
    # The lost log has the decisions of operators and the refused rows since the backup.
    "restored logs": {"restored targets", "given-up epochs", "changed targets", "refused rows"},
}
"""Faults that a history cannot have together with the fault."""

_MUCH = 10**12
_FEW_BYTES = 6_000


class Swarm(frozenset[str]):
    """The faults of one history."""

    @classmethod
    def drawn(cls, chance: random.Random) -> Swarm:
        share = chance.choice((0.1, 0.2, 0.35))
        faults = {fault for fault in FAULTS if chance.random() < share}
        for fault, others in _EXCLUDES.items():
            if fault in faults:
                faults -= others
        if not faults & set(IO_FAULTS):
            faults.add(chance.choice(list(IO_FAULTS)))
        return cls(faults)

    @property
    def io_faults(self) -> list[Fault]:
        return [fault for name, faults in IO_FAULTS.items() if name in self for fault in faults]


class Site:
    """A checkpoint with its log."""

    def __init__(self, checker: Checker) -> None:
        nothing = lambda _path: None  # noqa: E731
        self.checkpoint = Volume("file:///first/checkpoint", checker.spark_wrote, nothing)
        self.log = Volume("file:///first/log", checker.created, checker.deleted)

    def open_checkpoint(self, process: Process) -> Checkpoint:
        return Checkpoint(Mount(self.checkpoint, process))

    def open_log(self, process: Process) -> LogStore:
        return Mount(self.log, process)


class QueryBackup:
    """A backup of checkpoint and log, with the truth of its moment."""

    def __init__(self, world: World) -> None:
        self.files: tuple[Files, Files] = (
            world.site.checkpoint.snapshot(),
            world.site.log.snapshot(),
        )
        self.truth: Truth = world.checker.snapshot()
        self.offsets = dict(world.offsets)
        self.made_us = MACHINE.true_us


class World:
    """The hosts, stores, targets and checker of one history."""

    def __init__(self, swarm: Swarm, chance: random.Random, trace: Trace) -> None:
        self.swarm = swarm
        self.chance = chance
        self.trace = trace
        self.counts: Counter[str] = Counter()
        """The number of events, by name."""
        self.checker = Checker(self.counts)
        self.checker.two_drivers = "two drivers" in swarm
        self.site = Site(self.checker)
        self.checker.log, self.checker.checkpoint = self.site.log, self.site.checkpoint
        self.query_id = str(chance.getrandbits(64))
        names = ("a", "b", "c")[: chance.choice((2, 2, 3))]
        several = "several targets" in swarm or "changed targets" in swarm
        self.names: tuple[str, ...] = names if several else ("memory",)
        """The names of the targets of the next run."""
        self.several = several
        self.databases = {
            name: Database(
                name,
                "idempotent" if "lists" in swarm else chance.choice(KINDS),
                self.checker,
                lists="lists" in swarm,
            )
            for name in self.names
        }
        self.hosts = [Host("one"), Host("two")]
        self.drivers: list[Driver] = []
        self.flushers: list[FlusherThread] = []
        """The flushers in processes of their own."""
        self.saved: list[QueryBackup] = []
        self.offsets: dict[int, int] = {}
        """The source offset of each planned epoch."""
        self.documented: set[str] = set()
        """Classes of errors that docs/limits.md documents for a disaster of this history."""
        self.flush_errors: set[str] = set()
        """Classes of errors that stopped a flusher; a run that waits for space raises the same."""
        seconds = chance.choice((5, 60, 600)) if "retention" in swarm else 0
        size = chance.choice((3_000, _MUCH)) if seconds else 0
        self.retention = Retention(us=seconds * 1_000_000, bytes=size)
        exact = "clock jumps" not in swarm and size == _MUCH
        self.checker.retention_us = self.retention.us if exact else 0
        on_full = chance.choice(("block", "block", "fail"))
        self.max_bytes, self.on_full = _FEW_BYTES if "budget" in swarm else _MUCH, on_full
        self.quarantine = "refused rows" in swarm
        self.batch_writer = "batch writer" in swarm
        self.retained_batches = chance.choice((2, 3, 100)) if "purges" in swarm else None
        self._value = 0

    def next_value(self) -> int:
        self._value += 1
        return self._value

    def process(self, name: str) -> Process:
        return Process(name, self.chance.choice(self.hosts), self.trace, self._injected)

    def pipeline(self, process: Process, name: str) -> Pipeline:
        return Pipeline(
            query_id=self.query_id,
            store=self.site.open_log(process),
            checkpoint=self.site.open_checkpoint(process),
            target=SimulatedTarget(self.databases[name], process),
            target_name=name,
            several=self.several,
            retention=self.retention,
            quarantine=self.quarantine,
        )

    def key(self, name: str) -> str:
        return ledger_key(self.query_id, name if self.several else "")

    def row(self, name: str) -> LedgerRow | None:
        return self.databases[name].ledger.get(self.key(name))

    def kill_all(self) -> None:
        for driver in self.drivers:
            driver.process.kill()
        for flusher in self.flushers:
            flusher.process.kill()
        self.drivers, self.flushers = [], []

    def expects_error(self, kind: str, name: str = "") -> bool:
        """Return True if an error of this class is right in the present state.

        :param name: the name of the error's target; empty for any target.
        """
        state = self.checker.truth.state
        if state is None or kind in self.documented:
            return kind in self.documented
        rows = {database: self.row(database) for database in ([name] if name else self.databases)}
        begins = {target.name: target.first - 1 for target in state.targets if target.name in rows}
        right = {
            "LedgerBehindLog": any(
                (row := rows[database]) is None or row.epoch < max(state.trimmed, first_row)
                for database, first_row in begins.items()
            ),
            "WrongOwner": state.checkpoint != self.site.checkpoint.url
            or any(row is not None and row.log_id != state.log_id for row in rows.values()),
            "TargetRefused": any(
                row is not None and row.sending == SENDINGS for row in rows.values()
            ),
            "OptionError": "changed targets" in self.swarm,
        }
        return right.get(kind, False)

    def _injected(self, what: str) -> None:
        self.counts[what] += 1

    def happened(self, what: str, detail: object = "") -> None:
        """Count an event, and trace it."""
        self.counts[what] += 1
        if self.trace.on:
            self.trace.say(f"=== {what} {detail}".rstrip())

    def time_passes(self, seconds: float) -> None:
        """Advance the time."""
        MACHINE.true_us += int(seconds * 1_000_000)
