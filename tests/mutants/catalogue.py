"""The catalogue of deliberate bugs: reads `bugs.txt`, and finds the code and the tests of each bug.

A bug names a symbol, not a file, so a symbol can move to another module without a change of its bugs.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("wal_sink", "state_backends")
_BETWEEN = r"(?:\s|#[^\n]*\n)"
"""A regular expression for the layout and comments between two words of code."""


class Bug(NamedTuple):
    """A deliberate bug."""

    name: str
    symbol: str
    """The qualified name of the symbol, after parts of the module's name if it is ambiguous."""
    old: str
    """The code that is replaced; it is in the symbol exactly once."""
    new: str
    tests: tuple[str, ...]
    """The names of test functions or modules that must catch the bug, the fast ones first."""


class Symbol(NamedTuple):
    """A class, function, method or constant."""

    file: Path
    lines: tuple[int, int]
    packages: tuple[str, ...]
    qualified: str


class Change(NamedTuple):
    """A file without a bug and with it."""

    file: Path
    """The path relative to the tree."""
    earlier: str
    after: str


class UnfitBugError(Exception):
    """The code or the tests of a bug do not exist."""


def parse(text: str) -> tuple[Bug, ...]:
    """Read the catalogue; the first lines of `bugs.txt` describe its format."""
    bugs: list[Bug] = []
    tests: tuple[str, ...] = ()
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    for entry in re.split(r"\n(?=\S)", "\n".join(lines)) if lines else ():
        if entry.startswith("["):
            tests = tuple(entry.strip("[]").split())
            continue
        name, _, body = entry.partition("\n")
        match = re.fullmatch(r"\s*([\w.]+):(.*?)(?<=\s)=>(.*)", body, re.DOTALL)
        if match is None or not tests:
            raise UnfitBugError(f"{name}: write it as `symbol: old => new`, below its [tests]")
        symbol, old, new = match.groups()
        bugs.append(Bug(name, symbol, _block(old), _block(new), tests))
    return tuple(bugs)


def _block(text: str) -> str:
    """Return code without its common indentation."""
    inside = text.strip("\n").rstrip()
    return textwrap.dedent(inside) if "\n" in inside else inside.strip()


@cache
def symbols(tree: Path) -> tuple[Symbol, ...]:
    """Return all symbols of the product."""
    files = [path for package in PACKAGES for path in sorted((tree / package).rglob("*.py"))]
    return tuple(symbol for path in files for symbol in _symbols(tree, path))


def _symbols(tree: Path, path: Path) -> Iterator[Symbol]:
    file = path.relative_to(tree)
    remaining = [("", node) for node in ast.parse(path.read_text(encoding="utf-8")).body]
    while remaining:
        prefix, node = remaining.pop()
        decorators: list[ast.expr] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names, decorators = [node.name], node.decorator_list
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
        else:
            continue
        lines = min(part.lineno for part in (node, *decorators)), node.end_lineno or node.lineno
        for name in names:
            yield Symbol(file, lines, file.with_suffix("").parts, prefix + name)
        if isinstance(node, ast.ClassDef):
            remaining += [(f"{prefix}{node.name}.", child) for child in node.body]


@cache
def _by_last_name(tree: Path) -> dict[str, list[Symbol]]:
    result: dict[str, list[Symbol]] = {}
    for symbol in symbols(tree):
        result.setdefault(symbol.qualified.rpartition(".")[2], []).append(symbol)
    return result


def find(tree: Path, name: str) -> list[Symbol]:
    """Return the symbols that a name can mean."""
    named = _by_last_name(tree).get(name.rpartition(".")[2], [])
    return [symbol for symbol in named if _means(name, symbol)]


def _means(name: str, symbol: Symbol) -> bool:
    if not f".{name}".endswith(f".{symbol.qualified}"):
        return False
    packages = iter(symbol.packages)
    hints = name.removesuffix(symbol.qualified).strip(".")
    return all(hint in packages for hint in hints.split(".") if hint)


def change(tree: Path, bug: Bug) -> Change:
    """Return the file of a bug, without the bug and with it."""
    places = []
    for symbol in find(tree, bug.symbol):
        text = (tree / symbol.file).read_text(encoding="utf-8")
        starts = [0, *(line.end() for line in re.finditer(r"\n", text)), len(text)]
        first, last = symbol.lines
        pattern = _pattern(bug.old)
        matches = pattern.finditer(text, starts[first - 1], starts[last])
        places += [(symbol, text, match.span()) for match in matches]
    if len(places) != 1:
        raise UnfitBugError(f"{bug.name}: {bug.old!r} is {len(places)} times in {bug.symbol}")
    ((symbol, text, (start, end)),) = places
    line = text[text.rfind("\n", 0, start) + 1 : start]
    indent = _indent(line) - _indent(bug.old)
    new = textwrap.indent(bug.new, " " * indent).strip()
    return Change(symbol.file, text, text[:start] + new + text[end:])


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip(" "))


@cache
def _pattern(old: str) -> re.Pattern[str]:
    """Return a regular expression for code in any layout."""
    words = re.findall(r"[(\[{]\s*|\s*[)\]}]|\s+|[^\s()\[\]{}]+", old)
    pattern = ""
    for place, word in enumerate(words):
        bare = word.strip()
        if not bare:
            pattern += f"{_BETWEEN}+"
        elif bare in "([{" and place + 1 < len(words):
            pattern += f"{re.escape(bare)}{_BETWEEN}*"
        elif bare in ")]}" and place:
            pattern += f",?{_BETWEEN}*{re.escape(bare)}"
        else:
            pattern += re.escape(bare)
    return re.compile(pattern)


@cache
def _test_modules(tree: Path) -> tuple[Path, ...]:
    return tuple(sorted(p.relative_to(tree) for p in (tree / "tests").rglob("test_*.py")))


@cache
def _tests_named(tree: Path, name: str) -> tuple[str, ...]:
    """Return the paths of the test modules or functions with a name, as `test_x` or `wal/test_x`."""
    *folders, last = name.split("/")
    near = [
        path
        for path in _test_modules(tree)
        if "/".join(("", *path.parent.parts)).endswith("/".join(("", *folders)))
    ]
    if modules := [str(path) for path in near if path.stem == last]:
        return tuple(modules)
    function = re.compile(rf"^(?:async )?def {re.escape(last)}\(", re.MULTILINE)
    texts = ((path, (tree / path).read_text(encoding="utf-8")) for path in near)
    return tuple(f"{path}::{last}" for path, text in texts if function.search(text))


def find_tests(tree: Path, bug: Bug) -> tuple[str, ...]:
    """Return the paths of a bug's tests."""
    result = {name: _tests_named(tree, name) for name in bug.tests}
    if missing := [name for name in bug.tests if not result[name]]:
        raise UnfitBugError(f"{bug.name}: there is no test function or module {missing}")
    return tuple(dict.fromkeys(test for names in result.values() for test in names))


BUGS = parse(Path(__file__).with_name("bugs.txt").read_text(encoding="utf-8"))
