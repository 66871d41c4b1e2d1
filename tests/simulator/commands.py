"""What operators do in a history: any command at any time, on any target; most are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulator.machine import MACHINE
from tests.simulator.operators import Operator
from tests.simulator.process import Thread
from tests.simulator.swarm import Operation
from tests.simulator.target import Snapshot

if TYPE_CHECKING:
    from tests.simulator.history import History

_CALLS = 150
"""At one of so many first I/O calls a fault may hit a command."""


class Commands:
    """Gives commands in one history."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.world = history.world

    def operations(self, *, several: bool) -> tuple[Operation, ...]:
        """Return what may be done."""
        return (
            Operation("any command", "operators", 12, self._operate),
            Operation("rewind", "operators", 4, self.rewind),
            Operation("a rewind beside flushers", "operators", 4, self._beside_flushers),
            Operation(
                "timestamps go back from the future",
                "operators",
                4,
                self._from_the_future,
                lambda: self.world.future,
            ),
            Operation("give up what is begun", "operators", 5, self._give_up),
            Operation(
                "detach or attach", "detached targets", 10, self._detach_or_attach, lambda: several
            ),
            Operation(
                "replace a database",
                "detached targets",
                4,
                self._replace_database,
                lambda: bool(self._detached()),
            ),
            Operation("a rule of the table", "refused rows", 6, self._rule),
        )

    def _operate(self) -> None:
        """Give some command at some time; most of them are refused."""
        chance, site = self.world.chance, self.world.site
        operator = self._operator()
        row = self.world.row(operator.name)
        upto = max(site.kept, default=0)
        marks = site.recorded(operator.name) if chance.random() < 0.7 else []
        act = chance.choice(
            (
                operator.status,
                operator.verify,
                lambda: operator.rewind(chance.choice(marks or range(-1, upto + 1))),
                lambda: operator.skip(
                    (row.flushed if row else -1) + 1, begun=chance.random() < 0.5, copied=True
                ),
            )
        )
        self.history.turn(operator.process, act, calls=_CALLS)

    def _operator(self) -> Operator:
        """Let somebody give a command about one of the targets."""
        return Operator(self.world, self.world.site, self.world.chance.choice(self.world.targets))

    def _detach_or_attach(self) -> None:
        """Detach a target, or bring it back: what it is decides what is not refused."""
        operator = self._operator()
        attached = self.world.site.state(operator.name) == "attached"
        act = operator.detach if attached else operator.attach
        self.history.turn(operator.process, act, calls=_CALLS)

    def _detached(self) -> list[str]:
        states = {name: self.world.site.state(name) for name in self.world.targets if name}
        return [name for name, state in states.items() if state == "detached"]

    def _replace_database(self) -> None:
        """Put an empty database in the place of one whose target is detached."""
        name = self.world.chance.choice(self._detached())
        self.history.stop_flushers(name)
        self.world.happened("database replaced", name)
        self.world.databases[name].restore(Snapshot({}, {}, {}, MACHINE.true_us))
        self.world.judge.database_replaced(name)
        self.world.replaced.add(name)

    def _rule(self) -> None:
        """Give a table a rule that refuses rows, or drop it."""
        database = self.world.chance.choice([*self.world.databases.values()])
        database.refuses = not database.refuses
        self.world.happened("rule of the table" if database.refuses else "rule dropped")

    def rewind(self) -> None:
        """Stop all that does not stand still, as an operator should, and have flushed again what is there."""
        chance, site = self.world.chance, self.world.site
        operator = self._alone()
        if recorded := site.recorded(operator.name):
            to = chance.choice([min(recorded) - 1, *recorded])
            reset = "clock jumps" in self.world.swarm and chance.random() < 0.5
            to = max(recorded) if reset else to
            if reset and self.world.future and chance.random() < 0.7:
                self.history.set_clocks(0)
            self.history.turn(
                operator.process, lambda: operator.rewind(to, reset=reset), calls=_CALLS
            )

    def _beside_flushers(self) -> None:
        """Give the command while flushers live: it is refused, or they die meanwhile."""
        operator = self._operator()
        if recorded := self.world.site.recorded(operator.name):
            to = self.world.chance.choice(recorded)
            self.history.turn(operator.process, lambda: operator.rewind(to), calls=_CALLS)

    def _from_the_future(self) -> None:
        """Flush while all clocks are a day ahead; set them right, and leave those timestamps behind."""
        self.history.set_clocks(86_400)
        self.history.batch()
        self.history.flush()
        self.history.set_clocks(0)
        operator = self._alone()
        if recorded := self.world.site.recorded(operator.name):
            operator.rewind(max(recorded), reset=True)

    def _give_up(self) -> None:
        """Give up an epoch that a flusher has begun which died."""
        operator = self._alone()
        row = self.world.row(operator.name)
        if row is not None and row.begun is not None:
            epoch = self.world.chance.choice(row.begun.epochs).epoch
            self.history.turn(
                operator.process,
                lambda: operator.skip(epoch, begun=True, copied=True),
                calls=_CALLS,
            )

    def _alone(self) -> Operator:
        """Stop all that does not stand still, or merely the target's flushers, before a command."""
        operator = self._operator()
        processes = {thread.process for thread in self._moving()}
        if self.world.chance.random() < 0.5:
            processes = {
                each.process
                for each in self.world.flushing
                if each.target == operator.name and each.reports
            }
        for process in processes:
            self.history.end_process(process)
        return operator

    def _moving(self) -> list[Thread]:
        """Return the threads of drivers and flushers that do not stand still."""
        flushing = [each for driver in self.history.drivers for each in driver.flushings.values()]
        flushing += self.history.flushers
        threads = [driver.main for driver in self.history.drivers] + [
            each.thread for each in flushing
        ]
        busy = {thread.process for thread in threads if thread.stands_still}
        return [thread for thread in threads if thread.process not in busy]
