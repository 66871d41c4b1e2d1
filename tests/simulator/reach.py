"""In which histories a deliberate bug makes a difference: all others are the same with it and without it.

A history repeats itself from its seed. So where the product without the bug does not run what it changes, the
product with the bug does the same to the end, and need not be played. Most bugs change one expression. Where
that only looks, it is evaluated in both forms, and a history counts only where the values differ.
"""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from tests.mutants.catalogue import Change

MARKS = "_reached_by_history"
"""The name of the set of marks in each module that has some."""
BOTH = "_both_in_history"
"""The name there of what evaluates an expression in both forms."""
_UNFIT = (ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Await)
"""What an expression must not have that is evaluated once more."""


class Both:
    """Evaluates an expression with a bug and without it, and marks the bug where that differs."""

    def __init__(self, marks: set[int]) -> None:
        self._marks = marks
        self._acts: set[int] = set()
        """Bugs whose expression was found to change something: each time counts."""

    def __call__(
        self, number: int, before: Callable[[], Any], after: Callable[[], Any], *, test: bool
    ) -> Any:
        """Return what the expression is without the bug.

        :param test: only whether it is true matters.
        """
        if number not in self._marks and not self._is_same(number, before, after, test=test):
            self._marks.add(number)
        return before()

    def _is_same(
        self, number: int, before: Callable[[], Any], after: Callable[[], Any], *, test: bool
    ) -> bool:
        if number in self._acts:
            return False
        machine = importlib.import_module("tests.simulator.machine").MACHINE
        try:
            with machine.only_looking():
                one = before()
            with machine.only_looking():
                other = after()
            if test:
                return bool(one) is bool(other)
            return type(one) is type(other) and not isinstance(one, Iterator) and bool(one == other)
        except BaseException as error:  # noqa: BLE001 - an error is a difference, or it acts
            if type(error).__name__ == "ActsError":
                self._acts.add(number)
            return False


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
        module.__dict__[BOTH] = Both(self._marks if self._marks is not None else set())
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
            if place is not None and _evaluate_both(tree, of_file[number], number):
                continue
            if place is None:
                without.add(number)
                continue
            block, statement = place
            mark = ast.parse(f"{MARKS}.add({number})").body[0]
            block.insert(block.index(statement), mark)
        codes[file] = compile(ast.fix_missing_locations(tree), str(file), "exec")
    return codes, without


def _evaluate_both(tree: ast.Module, change: Change, number: int) -> bool:
    """Put both forms in the place of the expression that a bug changes; False: it is no single one."""
    found = _expression(ast.parse(change.before), ast.parse(change.after))
    if found is None:
        return False
    old, new, test = found
    wrap = _Wrap(old, new, number, test=test)
    wrap.visit(tree)
    return wrap.done


class _Wrap(ast.NodeTransformer):
    """Puts both forms of an expression in its place, which its position tells."""

    def __init__(self, old: ast.expr, new: ast.expr, number: int, *, test: bool) -> None:
        self._place = _position(old)
        self._new = new
        self._number = number
        self._test = test
        self._in_function = False
        self.done = False

    def visit(self, node: ast.AST) -> Any:
        """Look for it within functions alone: what runs as a module is loaded has no history."""
        if self._in_function and isinstance(node, ast.expr) and _position(node) == self._place:
            self.done = True
            forms = ", ".join(f"lambda: {ast.unparse(each)}" for each in (node, self._new))
            text = f"{BOTH}({self._number}, {forms}, test={self._test})"
            return ast.copy_location(ast.parse(text, mode="eval").body, node)
        before = self._in_function
        if isinstance(node, ast.FunctionDef):
            self._in_function = True
            node.body[:] = [self.visit(each) for each in node.body]
        else:
            self.generic_visit(node)
        self._in_function = before
        return node


def _position(node: ast.expr) -> tuple[type, int, int, int | None, int | None]:
    return type(node), node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def _expression(before: ast.AST, after: ast.AST) -> tuple[ast.expr, ast.expr, bool] | None:
    """Return the smallest expression that has all that differs, in both forms, and whether it is a test.

    One that is only a name or a constant differs always: what it is part of may not. A call that is a whole
    statement is there for what it changes.
    """
    found: list[tuple[ast.expr, ast.expr, bool]] = []
    within: ast.AST | None = None
    test = False
    while True:
        if isinstance(before, ast.expr) and isinstance(after, ast.expr):  # noqa: SIM102 - for the types
            if _is_fit(before) and _is_fit(after) and not isinstance(within, ast.Expr):
                found.append((before, after, test))
        fields = [name for name in before._fields if _texts(before, name) != _texts(after, name)]
        if type(before) is not type(after) or len(fields) != 1:
            break
        one, other = (getattr(node, fields[0]) for node in (before, after))
        if isinstance(one, list) and len(one) == len(other):
            pairs = [
                pair for pair in zip(one, other, strict=True) if _text(pair[0]) != _text(pair[1])
            ]
            one, other = pairs[0] if len(pairs) == 1 else (None, None)
        if not isinstance(one, ast.AST) or not isinstance(other, ast.AST):
            break
        within, test = before, fields[0] == "test"
        before, after = one, other
    telling = (each for each in reversed(found) if each[2] or not isinstance(each[0], _PARTS))
    return next(telling, found[-1] if found else None)


_PARTS = (ast.Constant, ast.Name, ast.Attribute, ast.GeneratorExp)


def _is_fit(node: ast.expr) -> bool:
    """Whether an expression can be evaluated once more, in a function of its own."""
    is_value = isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
    parts = isinstance(node, ast.Starred | ast.FormattedValue)
    return is_value and not parts and not any(isinstance(n, _UNFIT) for n in ast.walk(node))


def _texts(node: ast.AST, field: str) -> list[str]:
    found = getattr(node, field, None)
    return [*map(_text, found)] if isinstance(found, list) else [_text(found)]


def _text(found: object) -> str:
    return ast.dump(found) if isinstance(found, ast.AST) else repr(found)


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
