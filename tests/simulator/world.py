"""What all processes of one history share."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

from tests.simulator.judge import Judge
from tests.simulator.machine import MACHINE
from tests.simulator.process import Host, Process
from tests.simulator.site import Site
from tests.simulator.swarm import Swarm
from tests.simulator.target import Database
from tests.simulator.trace import Trace
from wal_sink.model.ledger import LedgerState

if TYPE_CHECKING:
    from tests.simulator.flushing import Flushing


class World:
    """Hosts, stores, target, judge, and the chance that drives them."""

    def __init__(self, swarm: Swarm, chance: random.Random, trace: Trace) -> None:
        self.swarm = swarm
        self.chance = chance
        self.trace = trace
        self.counts: Counter[str] = Counter()
        """How often each thing happened."""
        self.judge = Judge(self.counts)
        names = ("a", "b", "c")[: chance.choice((2, 2, 3))]
        self.targets: tuple[str, ...] = names if "several targets" in swarm else ("",)
        """Names of the targets; the only one has none."""
        self.lists = "lists" in swarm
        self.judge.targets = self.targets
        self.databases = {
            name: Database(self.judge, name, lists=self.lists) for name in self.targets
        }
        self.query_id = str(chance.getrandbits(64))
        self.judge.read_ledger = self.row
        self.site = Site(self.judge, self.query_id)
        """Where the query lives."""
        self.hosts = [Host("one"), Host("two")]
        self.flushing: list[Flushing] = []
        """Every flusher there ever was."""
        self.retention_s = 0.0
        self.future = False
        """Whether all clocks of a target may jump, those of the hosts, too: then rows are of the future."""
        self.quarantine = "refused rows" in swarm
        """Option onInvalidRow."""
        self.batch_writer = "batch writer" in swarm
        """Whether the rows come by `foreachBatch`."""
        self.offsets: dict[int, int] = {}
        """From what Spark plans each epoch: the same data again, unless a backup was restored."""
        self.copied = False
        """Whether a copy of the checkpoint was used: its flusher reports its error in the original log,
        and a run that waits there for room raises that."""
        self.batches_retained: int | None = None
        """Spark's `minBatchesToRetain`; None: it purges nothing."""
        self.max_bytes: int | None = None
        """`wal.maxBytes`; None: no budget."""
        self.documented: set[str] = set()
        """Kinds of errors at which the flush may stop, after what was done to this history."""
        self.documented_once_started: set[str] = set()
        """Those that are once a run has started anew."""

    @property
    def several(self) -> bool:
        """Whether the targets have names."""
        return self.targets != ("",)

    @property
    def options(self) -> dict[str, str]:
        """The sink's options, as far as commands read them."""
        return {"targets": ",".join(self.targets)} if self.several else {}

    @property
    def database(self) -> Database:
        """The first target's."""
        return self.databases[self.targets[0]]

    def row(self, target: str) -> LedgerState | None:
        """Return a target's ledger row."""
        key = f"{self.query_id}/{target}" if target else self.query_id
        return self.databases[target].ledger.get(key)

    def lose_ledger(self) -> bool:
        """Take the ledger row away, also by another ledger table; return whether there was one."""
        if self.database.ledger.pop(self.query_id, None) is None:
            return False
        self.judge.row_lost("")
        self.judge.timestamps_lost_us = MACHINE.true_us
        return True

    def process(self, name: str) -> Process:
        """Start a process on one of the hosts."""
        process = Process(name, self.chance.choice(self.hosts), self.trace, self._injected)
        process.others_live = self._beat
        return process

    def _beat(self) -> None:
        """Let every flusher report that it lives, if its process does not stand still."""
        for flushing in self.flushing:
            flushing.beat()

    def _injected(self, what: str) -> None:
        self.counts[what] += 1

    def happened(self, what: str, detail: str = "") -> None:
        """Count a thing, and trace it."""
        self.counts[what] += 1
        if self.trace.on:
            self.trace.say(f"=== {what} {detail}".rstrip())

    def time_passes(self, seconds: float) -> None:
        """Let time pass, in which the living report."""
        MACHINE.true_us += int(seconds * 1_000_000)
        self._beat()
