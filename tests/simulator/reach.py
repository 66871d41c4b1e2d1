"""Which histories come to the place of a deliberate bug: all others are the same with the bug and without it.

A history repeats itself from its seed. So where the product without the bug does not run the statement that
the bug changes, the product with the bug does the same to the end, and need not be played.
"""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType

from tests.mutants.catalogue import Change

MARKS = "_reached_by_history"
"""The name of the set of marks in each module that has some."""


class Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads some modules of the product from other code than that of their files."""

    def __init__(self, codes: Mapping[Path, CodeType], marks: set[int] | None = None) -> None:
        self._codes = {".".join(file.with_suffix("").parts): code for file, code in codes.items()}
        self._marks = marks

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find these modules alone."""
        found = fullname in self._codes
        return importlib.util.spec_from_loader(fullname, self) if found else None

    def exec_module(self, module: ModuleType) -> None:
        """Run the other code."""
        module.__dict__[MARKS] = self._marks
        exec(self._codes[module.__name__], module.__dict__)


def load_anew(loader: Loader) -> None:
    """Load product and simulator anew, in a process that is for nothing else."""
    for name in list(sys.modules):
        if name.partition(".")[0] in {"wal_sink", "state_backends", "tests"}:
            del sys.modules[name]
    sys.meta_path.insert(0, loader)


def marked(changes: Mapping[int, Change]) -> tuple[dict[Path, CodeType], set[int]]:
    """Return the modules of bugs, with a mark where each changes something, and the bugs that have none.

    Those change what runs as the module is loaded.
    """
    codes: dict[Path, CodeType] = {}
    without: set[int] = set()
    for file in {change.file for change in changes.values()}:
        of_file = {n: change for n, change in changes.items() if change.file == file}
        tree = ast.parse(next(iter(of_file.values())).before)
        places = {n: _place(tree, change) for n, change in of_file.items()}
        for number, place in places.items():
            if place is None:
                without.add(number)
                continue
            block, statement = place
            mark = ast.parse(f"{MARKS}.add({number})").body[0]
            block.insert(block.index(statement), mark)
        codes[file] = compile(ast.fix_missing_locations(tree), str(file), "exec")
    return codes, without


def _place(tree: ast.Module, change: Change) -> tuple[list[ast.stmt], ast.stmt] | None:
    """Return the statement that a bug changes first, with its block; None: it is not within a function."""
    before, after = change.before, change.after
    start = _common(before, after)
    same = _common(before[start:][::-1], after[start:][::-1])
    first, last = (before.count("\n", 0, at) + 1 for at in (start, len(before) - same))
    found: tuple[list[ast.stmt], ast.stmt] | None = None
    block: list[ast.stmt] | None = tree.body
    in_function = False
    while block is not None:
        touched = next((s for s in block if (s.end_lineno or s.lineno) >= first), block[-1])
        if in_function:
            found = block, touched
        in_function |= isinstance(touched, ast.FunctionDef | ast.AsyncFunctionDef)
        within = touched.lineno <= first and last <= (touched.end_lineno or touched.lineno)
        blocks = (b for b in _blocks(touched) if b[0].lineno <= first and _end(b) >= last)
        block = next(blocks, None) if within else None
    return found


def _common(one: str, other: str) -> int:
    """Return how many characters two texts have in common at the beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """Return the blocks of a statement."""
    for node in (statement, *ast.iter_child_nodes(statement)):
        if node is not statement and not isinstance(node, ast.ExceptHandler | ast.match_case):
            continue
        for name in ("body", "orelse", "finalbody"):
            if isinstance(block := getattr(node, name, None), list) and block:
                yield block


def _end(block: list[ast.stmt]) -> int:
    return block[-1].end_lineno or block[-1].lineno
