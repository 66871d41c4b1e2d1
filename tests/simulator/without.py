"""The simulator's power: with each deliberate bug in the product, how many histories find it.

Each bug is played in a fork of this process, which loads the product anew, with the changed module in the
place of the one on the disk; and only in the histories that come to the bug's place (`reach.py`).
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from tests.mutants.catalogue import BUGS, Bug, change
from tests.simulator import reach

_ROOT = Path(__file__).parents[2]

_PLAYED = tuple(
    f"wal_sink/{package}/"
    for package in (
        "admin",
        "checkpoint",
        "flush",
        "model",
        "progress",
        "protocol",
        "publish",
        "wal",
    )
)
"""The packages that run in a history. Targets, Spark, stores are simulated; commands, metrics left out."""


class Found(NamedTuple):
    """What came of a bug."""

    histories: int
    """How many there were till it was found, or till now."""
    played: int
    """How many of them came to its place, and were played with it."""
    violation: str = ""
    """What the judge said first; empty: nothing was found."""


def named(text: str) -> list[Bug]:
    """Return the bugs that a history can show and whose names contain a text; `all` for all of them."""
    wanted = "" if text == "all" else text
    return [bug for bug in BUGS if wanted in bug.name and not bug.unplayed and is_played(bug)]


def is_played(bug: Bug) -> bool:
    """Whether the place of a bug is in code that runs in a history."""
    return str(change(_ROOT, bug).file).startswith(_PLAYED)


_LONGEST_S = 20
"""Of CPU time: a history that takes longer never ends."""

_ROUNDS = (100, 300, 1_000, 3_000)
"""Bugs that nothing has found by so many histories are tried on, until all are played."""

_AT_ONCE = 500
"""Histories that one process looks through for the places of bugs."""


def _reached(bugs: Sequence[Bug], seeds: Sequence[int], answer: Connection) -> None:
    """Answer which histories come to the place of each bug, and which fail without any."""
    codes, everywhere = reach.marked({n: change(_ROOT, bug) for n, bug in enumerate(bugs)})
    marks: set[int] = set()
    reach.load_anew(reach.Loader(codes, marks))
    campaign = importlib.import_module("tests.simulator.campaign")
    campaign.prepare()
    found: list[list[int]] = [[] for _ in bugs]
    broken: list[int] = []
    for seed in seeds:
        marks.clear()
        if campaign.played(seed).violations:
            broken.append(seed)
            continue
        for number in marks | everywhere:
            found[number].append(seed)
    answer.send((found, broken))


def _find(bug: Bug, seeds: Sequence[int], answer: Connection) -> None:
    """Answer which history fails first in the product with a bug; in a process of its own."""
    mutation = change(_ROOT, bug)
    code = compile(mutation.after, str(mutation.file), "exec")
    reach.load_anew(reach.Loader({mutation.file: code}))
    campaign = importlib.import_module("tests.simulator.campaign")
    played = 0

    def never_ends(_signal: int, _frame: object) -> None:
        answer.send((played, "a history never ends"))
        os._exit(0)

    signal.signal(signal.SIGPROF, never_ends)
    campaign.prepare()
    for played, seed in enumerate(seeds, 1):
        signal.setitimer(signal.ITIMER_PROF, _LONGEST_S)
        if violations := campaign.played(seed).violations:
            answer.send((played, violations[0]))
            return
    answer.send((len(seeds), ""))


def _side_by_side(
    act: Callable[..., None], tasks: dict[Any, tuple[Any, ...]], processes: int
) -> Iterator[tuple[Any, Any]]:
    """Do tasks in processes of their own, some at a time; yield the name of each with its answer."""
    os.environ.pop("COVERAGE_PROCESS_START", None)
    context = multiprocessing.get_context("fork")
    left = list(reversed(tasks))
    running: dict[Connection, Any] = {}
    while left or running:
        while left and len(running) < processes:
            name, (mine, its) = left.pop(), context.Pipe(duplex=False)
            context.Process(target=act, args=(*tasks[name], its), daemon=True).start()
            its.close()
            running[mine] = name
        for ready in wait([*running]):
            assert isinstance(ready, Connection)
            try:
                yield running.pop(ready), ready.recv()
            except EOFError:
                raise RuntimeError("a process of the simulator died") from None
            finally:
                ready.close()


class Measure:
    """Tries bugs: first where each was found before, then round after round.

    :param known: a file with the seed that has found each bug last, which gets what is found now.
    """

    def __init__(self, bugs: list[Bug], seed: int, processes: int, known: Path) -> None:
        self.bugs = bugs
        self.found: dict[str, Found] = {bug.name: Found(0, 0) for bug in bugs}
        self._seed = seed
        self._processes = processes
        self._known = known
        known.touch()
        lines = (line.partition(" ") for line in known.read_text(encoding="utf-8").splitlines())
        self._before = {name: int(seed) for seed, _, name in lines}

    def run(self, histories: int, say: Callable[[str], None]) -> None:
        """Try all bugs, and say what is found. Histories that fail without any do not count."""
        within = range(self._seed, self._seed + histories)
        near = {bug: at for bug in self.bugs if (at := self._before.get(bug.name, -1)) in within}
        for _, (_, broken) in _side_by_side(
            _reached, {0: ((), sorted({*near.values()}))}, self._processes
        ):
            near = {bug: seed for bug, seed in near.items() if seed not in broken}
        self._try({bug: [seed] for bug, seed in near.items()}, say)
        for upto in (*(each for each in _ROUNDS if each < histories), histories):
            left = [
                bug
                for bug in self.bugs
                if not (found := self.found[bug.name]).violation and found.histories < upto
            ]
            if not left:
                continue
            first = min(self.found[bug.name].histories for bug in left)
            of_bug, broken = self._places(left, first, upto)
            if broken:
                say(f"fail without any bug, and are left out: seeds {', '.join(map(str, broken))}")
            self._try(of_bug, say, upto)
            every = [bool(found.violation) for found in self.found.values()]
            say(f"within {upto:,} histories: {sum(every)} of {len(every)}: {_share(every)}")

    def _try(self, seeds: dict[Bug, list[int]], say: Callable[[str], None], upto: int = 0) -> None:
        """Play histories of each bug, until one finds it; after these, `upto` are played."""
        for bug, (played, violation) in _side_by_side(
            _find, {bug: (bug, of_bug) for bug, of_bug in seeds.items()}, self._processes
        ):
            before = self.found[bug.name].played
            if not violation:
                self.found[bug.name] = Found(upto, before + played)
                continue
            seed = seeds[bug][played - 1]
            self.found[bug.name] = Found(seed - self._seed + 1, before + played, violation)
            say(f"{seed - self._seed + 1:>6,}  {bug.name}: {violation}")
            if self._before.get(bug.name) != seed:
                with self._known.open("a", encoding="utf-8") as file:
                    file.write(f"{seed} {bug.name}\n")

    def _places(
        self, bugs: list[Bug], first: int, upto: int
    ) -> tuple[dict[Bug, list[int]], list[int]]:
        """Return for each bug the histories that come to its place, beyond those that were played.

        And those that fail without any bug.
        """
        begins, end = range(self._seed + first, self._seed + upto, _AT_ONCE), self._seed + upto
        parts = {n: (bugs, range(n, min(n + _AT_ONCE, end))) for n in begins}
        places: dict[Bug, list[int]] = {bug: [] for bug in bugs}
        failed: list[int] = []
        for _, (found, broken) in sorted(_side_by_side(_reached, parts, self._processes)):
            failed += broken
            for bug, seeds in zip(bugs, found, strict=True):
                played = self._seed + self.found[bug.name].histories
                places[bug] += [seed for seed in seeds if seed >= played]
        return places, failed


def _share(found: Sequence[bool]) -> str:
    return f"{sum(found) / len(found):.2f}" if found else "-"


def report(bugs: list[Bug], *, seed: int, histories: int, processes: int, known: Path) -> int:
    """Print after how many histories each bug was found, then the share; return 1 if one was not."""
    console = Console(highlight=False, soft_wrap=True)
    measure = Measure(bugs, seed, processes, known)
    measure.run(histories, lambda text: console.print(text, markup=False))
    shares: dict[str, list[bool]] = {}
    for bug in bugs:
        found = measure.found[bug.name]
        package = change(_ROOT, bug).file.parts[1]
        shares.setdefault(package, []).append(bool(found.violation))
        if not found.violation:
            console.print(
                f"NOTHING finds: {bug.name} ({found.played:,} histories come to its place)"
            )
    table = Table("package", "deliberate bugs", "found", "share", box=None)
    every = [each for group in shares.values() for each in group]
    for package, group in [*sorted(shares.items()), ("all", every)]:
        table.add_row(package, str(len(group)), str(sum(group)), _share(group))
    console.print(table)
    console.print(f"within {histories:,} histories each, from seed {seed} on")
    return 0 if all(every) else 1
