"""A flusher in a process: the real one, driven as the loop of the product drives it."""

from __future__ import annotations

from tests.simulator.machine import MACHINE
from tests.simulator.process import Process, Thread
from tests.simulator.site import Site
from tests.simulator.target import SimulatedTarget
from tests.simulator.world import World
from wal_sink import clock
from wal_sink.admin.flush import HeartbeatHistory
from wal_sink.errors import WalSinkError
from wal_sink.flush.flusher import Flusher, Pipeline
from wal_sink.flush.report import HUNG_S, Reporter
from wal_sink.flush.run_history import RunHistory
from wal_sink.progress.heartbeat import SILENT_S
from wal_sink.protocol.next_step import Idle, Stale

_MOST_STEPS = 100


class Flushing:
    """A flusher and its thread.

    :param run_history: what its process has seen of runs; None: it is a process without Spark.
    :param target: the name of its target; None: the first one.
    """

    def __init__(
        self,
        world: World,
        site: Site,
        process: Process,
        run_history: RunHistory | None = None,
        target: str | None = None,
    ) -> None:
        self.world = world
        self.target = world.targets[0] if target is None else target
        self.site = site
        self.process = process
        self.thread = Thread(process, f"flush {self.target}".rstrip(), site)
        self.error: WalSinkError | None = None
        """With which the last pass ended."""
        self.documented: set[str] = set()
        """Kinds of errors at which it may stop, beside those of the whole history."""
        self.silent_us = 0
        """When it reported again last, after it had counted as hung."""
        self.rests = ""
        """Why the last pass rested."""
        self.asked = False
        """Whether it has asked the ledger, in a step that no error ended."""
        self._run_history = run_history
        self._heartbeats: HeartbeatHistory | None = None
        self._flusher: Flusher | None = None
        self._beats = Thread(process, "beat")
        world.flushing.append(self)

    @property
    def has_query(self) -> bool:
        """Whether a query has ever started there."""
        return self.site.checkpoint.has("metadata")

    def flush(self) -> None:
        """Flush until there is nothing to do, or an error stops it; a pass that stands still ends first."""
        self.thread.finish()
        self.thread.start(self._pass)

    @property
    def reports(self) -> bool:
        """Whether it lives, and has said what it does not so long ago that it counts as hung."""
        if not self.process.alive or self.process.stalled or self._flusher is None:
            return False
        reporter = self._flusher.reporter
        silent_s = MACHINE.monotonic_s() - reporter._said_s
        return reporter._written is not None and silent_s < HUNG_S - SILENT_S

    def beat(self) -> None:
        """Do as the thread does that repeats the flusher's report (`Reporter.beating`)."""
        if self.process.alive and not self.process.stalled and self._flusher is not None:
            reporter = self._flusher.reporter
            self._beats.start(lambda: reporter._beat(_Once()))  # type: ignore[arg-type]

    def _made(self) -> Flusher:
        """Make the flusher, in its process."""
        if self._flusher is not None:
            return self._flusher
        world, log = self.world, self.site.open_log(self.process, self.target)
        if self._run_history is None:
            self._heartbeats = HeartbeatHistory(log)
        self._flusher = Flusher(
            Pipeline(
                world.query_id,
                log,
                self.site.open_checkpoint(self.process),
                SimulatedTarget(world.databases[self.target], self.process),
                world.retention_s,
                world.quarantine,
            ),
            Reporter(log, clock.now_us, gives_way=self._run_history is None),
            clock_us=clock.now_us,
            run_history=self._run_history or self._heartbeats or RunHistory(),
        )
        return self._flusher

    def _pass(self) -> None:
        self.error, self.rests, asked = None, "", self.asked
        if self._flusher is not None and not self.reports:
            self.silent_us = MACHINE.true_us
        try:
            flusher = self._made()
        except OSError as error:
            self.world.trace.say(f"    {self.process.name}: cannot begin: {error!r}")
            return
        for _ in range(_MOST_STEPS):
            self._beats.finish()  # a report that is being written holds up the next one
            self.thread.looked_us = MACHINE.true_us
            if self._heartbeats is not None:
                self._heartbeats.undecided = False
            try:
                step = flusher.run_once()
            except WalSinkError as error:
                flusher.close()
                flusher.reporter.failed(error, wait_s=1.0)
                self._stopped(error)
                return
            except Exception as error:  # noqa: BLE001 - a bug of the product, or of ours
                self.world.judge.violate(f"a flusher raised {error!r}")
                return
            flusher.reporter.succeeded()
            self.asked |= self.thread.ledger_us > 0 and not isinstance(step, Stale)
            if not isinstance(step, Idle):
                continue
            if self._heartbeats is None or not self._heartbeats.undecided:
                if not asked or flusher._doubts:
                    self._agrees(step)
                self.rests = step.why
                return
            self.process.nap(1.0)  # as `wal-sink flush` does
        self.world.judge.violate("a flusher never rests")

    def _agrees(self, step: Idle) -> None:
        """Look whether a flusher that rests has asked the ledger: it had not before, or met an error.

        See rules 9 and 17.
        """
        site, judge, looked_us = self.site, self.world.judge, self.thread.listed.get("commits", 0)
        moved_us = max(judge.begun_lost_us(self.target), site.rewound_us)
        records = [us for path, us in judge.steps.recorded_us.items() if site.log.has(path)]
        if self.target or judge.cloned or step.warn or looked_us <= max([0, *records]):
            return
        # An earlier step of this pass may have asked, before the row was another one.
        if self.thread.since_us <= moved_us or looked_us <= self.process.stalled_us:
            return
        row, mark = self.world.row(self.target), max(site.recorded(self.target), default=-1)
        if mark >= 0 and (row is None or row.flushed < mark):
            judge.violate(f"a flusher rests, and the ledger row lies behind {mark}: {step.why}")

    def _stopped(self, error: WalSinkError) -> None:
        self.error = error
        self.world.counts[f"flush stopped: {type(error).__name__}"] += 1
        self.world.trace.say(f"    {self.process.name}: the flush stops: {error.summary}")
        documented = self.world.documented | self.documented
        if self.site.lacks_records(self.target):
            documented |= {"CorruptLog"}
        if not error.transient and type(error).__name__ not in documented:
            self.world.judge.violate(f"the flush stopped: {error.summary}")


class _Once:
    """Stands for the event that ends the thread of the heartbeat: it is set after one look."""

    def __init__(self) -> None:
        self._looked = False

    def wait(self, seconds: float) -> bool:
        """Return whether the thread ends."""
        looked, self._looked = self._looked, True
        return looked
