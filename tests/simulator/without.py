"""Plays histories of the product with a deliberate bug, and says after how many the simulator finds it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from tests.mutants.catalogue import BUGS, Bug, change

_ROOT = Path(__file__).parents[2]
_COPIED = ("wal_sink", "state_backends", "tests")
_PLAYED = re.compile(r"^([\d,]+) histories in", re.MULTILINE)
_FOUND = re.compile(r"^\d+ x (.+)$", re.MULTILINE)


class Found(NamedTuple):
    """What came of a bug."""

    histories: int
    violation: str | None
    """What the judge said first; None: nothing was found."""


_PLAYED_PACKAGES = ("admin", "checkpoint", "flush", "progress", "protocol", "publish", "wal")


def named(text: str) -> list[Bug]:
    """Return the bugs whose names contain a text, of the packages whose code the simulator plays."""
    packages = tuple(f"wal_sink/{package}/" for package in _PLAYED_PACKAGES)
    chosen = [bug for bug in BUGS if text in bug.name]
    return [bug for bug in chosen if str(change(_ROOT, bug).file).startswith(packages)]


def find(bug: Bug, *, seed: int, histories: int, processes: int) -> Found:
    """Put a bug into a copy of the tree, and play histories there until one fails."""
    with tempfile.TemporaryDirectory(prefix="wal_sink-without-") as folder:
        tree = Path(folder)
        for name in _COPIED:
            shutil.copytree(_ROOT / name, tree / name)
        mutation = change(tree, bug)
        (tree / mutation.file).write_text(mutation.after, encoding="utf-8")
        arguments = ("--seed", seed, "--histories", histories, "--processes", processes)
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulator", *map(str, arguments)],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree), "COLUMNS": "250"},
            capture_output=True,
            text=True,
            check=False,
        )
    played = _PLAYED.search(done.stdout)
    if played is None:
        return Found(0, f"the simulator broke: {(done.stdout + done.stderr).strip()[-300:]}")
    found = _FOUND.search(done.stdout)
    return Found(int(played[1].replace(",", "")), found[1] if found else None)


def report(bugs: list[Bug], *, seed: int, histories: int, processes: int) -> int:
    """Print for each bug after how many histories it was found; return 1 when one was not."""
    console = Console(highlight=False)
    table = Table("deliberate bug", "found after", "as")
    missed = 0
    for bug in bugs:
        with console.status(bug.name):
            found = find(bug, seed=seed, histories=histories, processes=processes)
        console.print(f"{bug.name}: {found.histories:,} histories: {found.violation or 'NOTHING'}")
        missed += found.violation is None
        table.add_row(bug.name, f"{found.histories:,}", found.violation or "[red]nothing[/red]")
    console.print(table)
    return 1 if missed else 0
