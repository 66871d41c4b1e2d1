"""`make mutants`: puts each bug into a copy of the tree, and prints the test that catches it.

`ARGS="wal_sink/wal Flusher"` selects the bugs whose file or symbol begins with one of these texts.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.mutants.catalogue import BUGS, Bug, UnfitBugError, change, find_tests
from tests.support.programs import ran

ROOT = Path(__file__).parents[2]
_COPIED = ("wal_sink", "state_backends", "tests", "examples", "docs", "pyproject.toml", "README.md")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_NO_SERVER = re.compile(r"^E +\S*DidNotStart: ", re.MULTILINE)
"""The output of pytest if a server did not start; such a test did not fail by the bug."""


def main() -> int:
    """Return the exit code: 1 if no test caught a bug."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "place", nargs="*", help="how a file or symbol begins that has the bug; default: all"
    )
    places = tuple(parser.parse_args().place) or ("",)
    try:
        files = {bug: str(change(ROOT, bug).file) for bug in BUGS}
    except UnfitBugError as error:
        sys.exit(str(error))
    bugs = [bug for bug in BUGS if files[bug].startswith(places) or bug.symbol.startswith(places)]
    console = Console()
    table = Table("deliberate bug", "caught by")
    survivors = []
    with tempfile.TemporaryDirectory(prefix="wal_sink-mutants-") as folder:
        tree = copied(Path(folder))
        with console.status("without a bug"):
            every = sorted({test for bug in bugs for test in find_tests(tree, bug)})
            if (broken := first_failure(tree, tuple(every))) is not None:
                sys.exit(f"{broken} fails without any bug: nothing can be told")
        for bug in bugs:
            with console.status(bug.name):
                caught = caught_by(tree, bug)
            console.print(f"{bug.name}: {caught or '[red]SURVIVED[/red]'}", highlight=False)
            table.add_row(bug.name, caught or "[red]nothing[/red]")
            if caught is None:
                survivors.append(bug.name)
    console.print(table)
    console.print(f"{len(bugs) - len(survivors)} of {len(bugs)} bugs were caught")
    return 1 if survivors else 0


def copied(tree: Path) -> Path:
    """Copy the product and its tests to an empty folder; return the folder."""
    for name in _COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tree / name)
    return tree


def caught_by(tree: Path, bug: Bug) -> str | None:
    """Put a bug in, run its tests, and take it out; return the first test that failed."""
    mutation = change(tree, bug)
    file = tree / mutation.file
    file.write_text(mutation.after, encoding="utf-8")
    try:
        return first_failure(tree, find_tests(tree, bug))
    finally:
        file.write_text(mutation.earlier, encoding="utf-8")


def first_failure(tree: Path, selected: tuple[str, ...]) -> str | None:
    """Run tests until one fails; return its name."""
    ended = ran(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *selected],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},  # the copy comes before the installed package
    )
    if ended.returncode == 0:
        return None
    if _NO_SERVER.search(ended.stdout):
        sys.exit(f"a server did not start, so nothing can be told:\n{ended.stdout}")
    failed = _FAILED.search(ended.stdout)
    if failed is None:
        sys.exit(f"pytest did not run:\n{ended.stdout}\n{ended.stderr}")
    return failed[1]


if __name__ == "__main__":
    sys.exit(main())
