"""An operator: gives a command in a process of its own, at any time, and takes a refusal for an answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.simulator.flushing import Flushing
from tests.simulator.machine import MACHINE
from tests.simulator.process import Process, Rewinding, Thread
from tests.simulator.site import Site
from tests.simulator.target import SimulatedTarget
from tests.simulator.volume import Mount, Volume
from tests.simulator.world import World
from wal_sink import clock
from wal_sink.admin.adopt import plan_adopt
from wal_sink.admin.flusher_at_work import Patience
from wal_sink.admin.quarantine import list_quarantine, plan_retry
from wal_sink.admin.query import Query
from wal_sink.admin.rewind import plan_rewind
from wal_sink.admin.skip import plan_skip
from wal_sink.admin.verify import verify
from wal_sink.errors import OptionError, WalSinkError
from wal_sink.progress.status import read_status

_MOST_LOOKS = 1_000


class Operator:
    """Somebody with a shell, for one command.

    :param target: the name of the target that it is about; None: the first one.
    """

    def __init__(self, world: World, site: Site, target: str | None = None) -> None:
        self.name = world.targets[0] if target is None else target
        self.world = world
        self.site = site
        self.process: Process = world.process("operator")
        self.thread = Thread(self.process, "command", site)
        self.found: Any = None
        """What the command has returned."""
        self.error: WalSinkError | None = None
        """With which the command was refused, or ended."""
        self.query = Query(
            world.query_id,
            site.open_checkpoint(self.process),
            site.open_log(self.process, self.name),
            patience=Patience(
                now_s=lambda: MACHINE.true_us / 1_000_000,
                sleep=self._wait,
                say=lambda text: world.trace.say(f"    {self.process.name}: {text}"),
            ),
        )
        self.target = SimulatedTarget(world.databases[self.name], self.process)
        self._waited = 0

    def _wait(self, seconds: float) -> None:
        """Wait for a sign of life of a flusher; a command that waits for ever is a bug."""
        self._waited += 1
        if self._waited > _MOST_LOOKS:
            self.world.judge.violate("a command waits for ever for a sign of life")
            self.process.die()
        self.process.nap(seconds)

    def status(self) -> None:
        """Give `wal-sink status`."""
        self._command("status", lambda: read_status(self.query.checkpoint, self.query.log))

    def verify(self) -> None:
        """Give `wal-sink verify`."""
        self._command("verify", lambda: verify(self.query, lambda: self.target, clock.now_us()))

    def _living(self) -> set[Flushing]:
        """Return the flusher that reported last, if it lives and can: it may hide another one."""
        log, path = self.site.log, f"flusher-{self.name}.json" if self.name else "flusher.json"
        reports = not (log.full or log.away) and log.has(path)
        last = json.loads(log.get(path))["flusher"] if reports else ""
        return {
            each
            for each in self.world.flushing
            if last == f"{each.process.host.name}:{each.process.pid}"
            and each.site is self.site
            and each.target == self.name
            and each.reports
        }

    def rewind(self, to: int, *, restored: bool = False, reset: bool = False) -> None:
        """Give `wal-sink rewind --to`."""
        judge, living, since_us = self.world.judge, self._living(), MACHINE.true_us
        rewind = Rewinding(self.name, to)

        def replaced(flushed: int) -> None:
            judge.rewound(self.name, self.site, flushed)
            self.site.unended_rewinds[self.name] += 1
            if not rewind.reported and not self.process.disturbed_us:
                judge.violate("a rewind is carried out that has not reported itself")
            rewind.row, rewind.moved_us = self.world.row(self.name), MACHINE.true_us
            if reset:
                judge.reset(self.name)
            self._row_made()
            judge.steps.rewound(self.site, self.name, flushed)
            # One that has hung meanwhile, or whose reports have failed, as on a full disk, may count as dead.
            heard = {
                each for each in living if max(each.process.disturbed_us, each.silent_us) < since_us
            }
            if beside := {each for each in heard if each.reports}:
                names = ", ".join(each.process.name for each in beside)
                judge.violate(f"a rewind is carried out beside a living flusher: {names}")

        target = SimulatedTarget(self.world.databases[self.name], self.process, replaced)

        def act() -> None:
            possible = not (restored or reset) and judge.steps.may_rewind(self.site, self.name, to)
            row = self.world.row(self.name)
            try:
                plan = plan_rewind(
                    self.query,
                    target,
                    to,
                    clock.now_us(),
                    restored=restored,
                    reset_by=clock.now_us if reset else None,
                )
            except OptionError as error:
                # Another rewind, and a flusher after it, may have left nothing to do in between.
                possible &= row == self.world.row(self.name)
                if possible and judge.steps.may_rewind(self.site, self.name, to):
                    judge.violate(f"a rewind to {to} is refused: {error.summary}")
                raise
            self.thread.rewind = rewind
            plan.carry_out(clock.now_us())
            judge.rewind_ended(self.site, self.name, to)
            self.site.unended_rewinds[self.name] -= 1
            self.site.ended_rewinds.append((self.name, to, since_us))

        self.world.documented |= {"LedgerBehindLog"}  # until it is carried out to its end
        self._command(f"rewind --to {to}{' --restored' if restored else ''}", act)

    def _row_made(self) -> None:
        row = self.world.row(self.name)
        assert row is not None
        self.world.judge.row_made(self.name, row)

    def retry(self) -> None:
        """Give `wal-sink quarantine --retry`."""
        self._command(
            f"retry {self.name}".rstrip(),
            lambda: plan_retry(self.query, self._as_now()).carry_out(clock.now_us()),
        )

    def _as_now(self) -> SimulatedTarget:
        """Return the target."""
        return SimulatedTarget(self.world.databases[self.name], self.process)

    def list_quarantine(self) -> None:
        """Give `wal-sink quarantine`; it has to name every row that is not in the table."""

        def act() -> None:
            found = list_quarantine(self.query).rows
            self.world.judge.listed(self.site, self.name, found)

        self._command("quarantine", act)

    def adopt(self) -> None:
        """Give `wal-sink adopt`."""

        def act() -> None:
            plan = plan_adopt(self.query, self.target, clock.now_us())
            plan.carry_out(clock.now_us())

        self._command("adopt", act)

    def skip(self, epoch: int, *, begun: bool, copied: bool) -> None:
        """Give `wal-sink skip EPOCH`, with a place for its files or without."""
        place = Volume("simulated://copies", lambda _path, _data: None, lambda _path: None)

        def act() -> None:
            to = Mount(place, self.process) if copied else None
            plan = plan_skip(
                self.query,
                self.target,
                epoch,
                to,
                clock.now_us(),
                begun=begun,
            )
            plan.carry_out(clock.now_us())

        self._command(f"skip {epoch}{' --begun' if begun else ''}", act)

    def _command(self, name: str, act: Callable[[], object]) -> None:
        verb = name.split(maxsplit=1)[0]
        self.world.happened(f"operator: {verb}", name)

        def run() -> None:
            try:
                self.found = act()
            except (WalSinkError, OSError) as error:
                self.error = error if isinstance(error, WalSinkError) else None
                self.world.counts[f"operator: {verb} refused"] += 1
                moved = self.thread.rewind is not None and self.thread.rewind.row is not None
                self.world.counts["rewinds cut short"] += moved
                self.world.trace.say(f"    {self.process.name}: {type(error).__name__}: {error}")
            except Exception as error:  # noqa: BLE001 - a bug of the product, or of ours
                self.world.judge.violate(f"{name} raised {error!r}")

        self.thread.start(run)
