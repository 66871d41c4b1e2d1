"""Plays histories of the product with a deliberate bug, and counts the histories until one fails.

Each bug is played in a fork of this process, which loads the product again with the changed module.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import CodeType, ModuleType

from rich.console import Console

from tests.mutants.catalogue import BUGS, Bug, change

_ROOT = Path(__file__).parents[2]

_PLAYED = tuple(
    f"wal_sink/{package}/"
    for package in ("checkpoint", "flush", "model", "progress", "protocol", "publish", "wal")
)
"""The packages whose code runs in a history; targets, Spark and stores are simulated."""

_LONGEST_S = 20
"""The maximum CPU time of a history in seconds; a history that takes longer never ends."""


class Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module of the product from changed code."""

    def __init__(self, module: str, code: CodeType) -> None:
        self._module, self._code = module, code

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a spec for this module only."""
        if fullname != self._module:
            return None
        return importlib.util.spec_from_loader(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        """Run the changed code."""
        exec(self._code, module.__dict__)


def named(text: str) -> list[Bug]:
    """Return the bugs that a history can show, and whose names or tests contain a text.

    :param text: `all` for all bugs.
    """
    bugs = (bug for bug in BUGS if text == "all" or text in bug.name or text in bug.tests)
    bugs = (bug for bug in bugs if not bug.unplayed)
    return [bug for bug in bugs if str(change(_ROOT, bug).file).startswith(_PLAYED)]


def _find(bug: Bug, seeds: range, answer: Connection) -> None:
    """Play histories with a bug until one fails; send its number and violation. Runs in its own process."""
    mutation = change(_ROOT, bug)
    code = compile(mutation.after, str(mutation.file), "exec")
    for name in list(sys.modules):
        if name.partition(".")[0] in {"wal_sink", "state_backends", "tests"}:
            del sys.modules[name]
    sys.meta_path.insert(0, Loader(".".join(mutation.file.with_suffix("").parts), code))
    campaign = importlib.import_module("tests.simulator.campaign")
    played = 0

    def never_ends(_signal: int, _frame: object) -> None:
        answer.send((played, "a history never ends"))
        os._exit(0)

    signal.signal(signal.SIGPROF, never_ends)
    campaign.prepare()
    for played, seed in enumerate(seeds, 1):
        signal.setitimer(signal.ITIMER_PROF, _LONGEST_S)
        if violations := campaign.play_safely(seed).violations:
            answer.send((played, violations[0]))
            return
    answer.send((0, ""))


def report_bugs(bugs: list[Bug], *, seed: int, histories: int, processes: int) -> int:
    """Print the histories for each bug, and the share of found bugs; return 1 if a bug was not found."""
    console = Console(highlight=False, soft_wrap=True)
    context = multiprocessing.get_context("fork")
    pending, running, count = [*reversed(bugs)], dict[Connection, Bug](), 0
    while pending or running:
        while pending and len(running) < processes:
            bug, (mine, its) = pending.pop(), context.Pipe(duplex=False)
            arguments = (bug, range(seed, seed + histories), its)
            context.Process(target=_find, args=arguments, daemon=True).start()
            its.close()
            running[mine] = bug
        for ready in wait([*running]):
            assert isinstance(ready, Connection)
            bug = running.pop(ready)
            played, violation = ready.recv()
            ready.close()
            count += bool(violation)
            text = (
                f"{played:>6,}  {bug.name}: {violation.strip().splitlines()[-1]}"
                if violation
                else f"NOTHING finds: {bug.name}"
            )
            console.print(text, markup=False)
    console.print(f"within {histories:,} histories from seed {seed} on: {count} of {len(bugs)}")
    return 0 if count == len(bugs) else 1
