"""The simulator's power: with each deliberate bug in the product, how many histories find it.

Each bug is tried in a fork of this process, which loads the product anew, with the changed module in the
place of the one on the disk.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from tests.mutants.catalogue import BUGS, Bug, change

_ROOT = Path(__file__).parents[2]

_PLAYED_PACKAGES = ("admin", "checkpoint", "flush", "progress", "protocol", "publish", "wal")

NOT_SHOWN = {
    "it breaks after a power loss alone, or at files of the disk": (
        "what an earlier pass has synced counts for all later ones",
        "a file counts as synced although its folder was not",
        "what is being synced is acted on",
        "a sync that has failed is forgotten by the next pass",
        "the last epoch of a window is not durable in the checkpoint before its rows are sent",
        "what Spark goes on from is not durable in the checkpoint before rows are sent",
        "half-written files of killed runs stay",
        "what a newer run is writing goes as half written",
    ),
    "it costs time, memory or requests, and no row": (
        "what is kept stays where each pass lists what waits",
        "a note about an epoch without a sink is looked up by its name",
        "who reads many manifests keeps all their rows",
        "a worker keeps the segments that it has written",
        "every task may report as much as the first",
        "old records of a window stay for ever",
        "tickets of starts that never published stay",
    ),
    "it is about what people read, or whom they trust": (
        "test_forged_log",
        "test_refuse_unconfirmed",
        "test_progress",
        "test_start_message",
        "test_left_behind",
        "verify does not say that the flush stands at a refused row",
        "options of a run that failed as it started are taken for the query's",
        "a window of a transaction that was not finished is said to be in the table",
        "who waits for a target that is not attached waits for ever",
        "flush of a target that is not attached ends as if all were flushed",
        "rows in quarantine of a detached target do not count",
    ),
    "bytes have to change under their names": (
        "test_corruption",
        "test_lost_records",
        "test_segment",
        "test_inline_segments",
        "an epoch ends at a segment that could not be read ahead",
        "a text that is not UTF-8 is published",
    ),
    "it is about a target that dates rows, adds them in a transaction, or stages them": (
        "test_dated_rows",
        "test_staged_rows",
        "test_sqlite_target",
        "rows of a log of several targets are written as Spark gave them",
        "a row that the check joins with another one stays in quarantine when it is sent again",
    ),
    "it is about columns, or jobs of Spark": (
        "test_epoch_column",
        "test_flush_task",
        "test_split_window",
        "refused rows forget the epoch that they came with",
        "a failed call takes the segments of another one",
    ),
    "it is about a command that deletes all": ("test_reset",),
}
"""Bugs that no history can show, by name or by the module of their tests, with the reason."""


class Found(NamedTuple):
    """What came of a bug."""

    histories: int
    violation: str | None
    """What the judge said first; None: nothing was found."""


def named(text: str) -> list[Bug]:
    """Return the bugs that a history can show and whose names contain a text; `all` for all of them."""
    packages = tuple(f"wal_sink/{package}/" for package in _PLAYED_PACKAGES)
    wanted = "" if text == "all" else text
    return [
        bug
        for bug in BUGS
        if wanted in bug.name
        and str(change(_ROOT, bug).file).startswith(packages)
        and not _is_not_shown(bug)
    ]


def _is_not_shown(bug: Bug) -> bool:
    modules = {test.rpartition("/")[2] for test in bug.tests}
    return any(bug.name in names or modules & set(names) for names in NOT_SHOWN.values())


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module from a text in place of its file."""

    def __init__(self, file: Path, text: str) -> None:
        self._name = ".".join(file.with_suffix("").parts)
        self._code = compile(text, str(file), "exec")

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find that module alone."""
        return importlib.util.spec_from_loader(fullname, self) if fullname == self._name else None

    def exec_module(self, module: ModuleType) -> None:
        """Run the text."""
        exec(self._code, module.__dict__)


_LONGEST_S = 60
"""Of CPU time: a history that takes longer never ends."""


def _find(bug: Bug, seed: int, histories: int, answer: Connection) -> None:
    """Play histories of the product with a bug until one fails; in a process of its own."""
    os.environ.pop("COVERAGE_PROCESS_START", None)
    mutation = change(_ROOT, bug)
    for name in list(sys.modules):
        if name.partition(".")[0] in {"wal_sink", "state_backends", "tests"}:
            del sys.modules[name]
    sys.meta_path.insert(0, _Changed(mutation.file, mutation.after))
    campaign = importlib.import_module("tests.simulator.campaign")
    number = 0

    def never_ends(_signal: int, _frame: object) -> None:
        answer.send((number, "a history never ends"))
        os._exit(0)

    signal.signal(signal.SIGPROF, never_ends)
    campaign.prepare()
    for number in range(1, histories + 1):
        signal.setitimer(signal.ITIMER_PROF, _LONGEST_S)
        violations = campaign.play(seed + number - 1).violations
        if violations:
            answer.send((number, violations[0]))
            return
    answer.send((histories, None))


def _tried(
    bugs: Sequence[Bug], seed: int, histories: int, processes: int
) -> Iterator[tuple[Bug, Found]]:
    """Try bugs, some side by side; yield each when it is found, or not."""
    context = multiprocessing.get_context("fork")
    left = list(reversed(bugs))
    running: dict[Connection, Bug] = {}
    while left or running:
        while left and len(running) < processes:
            bug, (mine, its) = left.pop(), context.Pipe(duplex=False)
            context.Process(target=_find, args=(bug, seed, histories, its), daemon=True).start()
            its.close()
            running[mine] = bug
        for ready in wait([*running]):
            assert isinstance(ready, Connection)
            bug = running.pop(ready)
            try:
                yield bug, Found(*ready.recv())
            except EOFError:
                yield bug, Found(0, "the simulator broke")
            ready.close()


def report(bugs: list[Bug], *, seed: int, histories: int, processes: int) -> int:
    """Print for each bug after how many histories it was found, then the share; return 1 if one was not."""
    console = Console(highlight=False, soft_wrap=True)
    shares: dict[str, list[bool]] = {}
    for bug, found in _tried(bugs, seed, histories, processes):
        console.print(
            f"{bug.name}: {found.histories:,}: {found.violation or 'NOTHING'}", markup=False
        )
        packages = change(_ROOT, bug).file.parts[1]
        shares.setdefault(packages, []).append(found.violation is not None)
    table = Table("package", "deliberate bugs", "found", "share", box=None)
    every = [each for group in shares.values() for each in group]
    for package, group in [*sorted(shares.items()), ("all", every)]:
        share = f"{sum(group) / len(group):.2f}" if group else "-"
        table.add_row(package, str(len(group)), str(sum(group)), share)
    console.print(table)
    console.print(f"within {histories:,} histories each, from seed {seed} on")
    return 0 if all(every) else 1
