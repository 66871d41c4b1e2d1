"""The deliberate bugs fit the code, and the catalogue refuses bugs that do not."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from tests.mutants.__main__ import first_failure
from tests.mutants.catalogue import BUGS, UnfitBugError, change, find_tests, parse

ROOT = Path(__file__).parents[2]


@functools.cache
def meaning(code: str) -> str:
    """Return the syntax tree of a file as text; it is cached, since most files have several bugs."""
    return ast.dump(ast.parse(code))


@pytest.mark.parametrize("tests", sorted({bug.tests for bug in BUGS}), ids=lambda tests: tests[0])
def test_bugs_fit_the_code(tests: tuple[str, ...]) -> None:
    """The code of each bug is in its symbol once, the bug changes the syntax tree, and its tests exist."""
    for bug in (bug for bug in BUGS if bug.tests == tests):
        mutation = change(ROOT, bug)
        assert meaning(mutation.earlier) != ast.dump(ast.parse(mutation.after)), bug.name
        assert find_tests(ROOT, bug), bug.name


def test_bug_names_are_unique() -> None:
    assert len(BUGS) > 200
    assert len({bug.name for bug in BUGS}) == len(BUGS)


CODE = """
def write(rows):
    return send(  # in one request
        rows,
        until=done,
    )

class Session:
    def write(self, rows):
        if rows:  # else nothing is owed
            self.send(rows)
        return rows
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a tree with two modules, which have symbols of the same names, and with tests."""
    for package, name in ("flush/rows.py", "send"), ("publish/batch.py", "give"):
        file = tmp_path / "wal_sink" / package
        file.parent.mkdir(parents=True)
        file.write_text(CODE.replace("send(", f"{name}("), encoding="utf-8")
    for folder in "wal", "protocol":
        file = tmp_path / "tests" / folder / "test_rows.py"
        file.parent.mkdir(parents=True)
        file.write_text(f"def test_{folder}(): ...", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("entry", "after"),
    [
        ("flush.write: send(rows, until=done) => send([])", "return send([])\n"),
        ("write: give( => send(", "return send(  # in one"),
        ("publish.Session.write: if rows: self.give(rows) => pass", "        pass\n        return"),
        ("flush.Session.write: rows: =>", "        if   # else"),
        (
            "flush.Session.write:\n        self.send(rows)\n    =>\n        a = 1\n        b = 2",
            "            a = 1\n            b = 2\n        return",
        ),
    ],
)
def test_bug_replaces_code_in_its_symbol(tree: Path, entry: str, after: str) -> None:
    """Layout and comments are ignored, and the new code has the indentation of its place."""
    (bug,) = parse(f"# Bugs\n\n[wal/test_rows test_protocol]\nrows are lost\n    {entry}\n")
    assert after in change(tree, bug).after
    assert find_tests(tree, bug) == (
        "tests/wal/test_rows.py",
        "tests/protocol/test_rows.py::test_protocol",
    )


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("flush.write: gone => pass", "is 0 times in flush.write"),
        ("Session.write: if rows: => pass", "is 2 times in Session.write"),
        ("spark.write: send( => give(", "is 0 times in spark.write"),
        ("flush.write: send( -> give(", "write it as"),
    ],
)
def test_bug_that_does_not_fit_is_refused(tree: Path, entry: str, problem: str) -> None:
    with pytest.raises(UnfitBugError, match=problem):
        change(tree, parse(f"[test_rows]\nrows are lost\n    {entry}")[0])


def test_bug_without_its_tests_is_refused(tree: Path) -> None:
    (bug,) = parse("[test_rows test_gone]\nrows are lost\n    flush.write: send( => give(")
    with pytest.raises(UnfitBugError, match="test_gone"):
        find_tests(tree, bug)


NODE = """
import pytest
from wal_sink.demo.server import DidNotStart

@pytest.fixture
def node():
    raise {error}("It gave no answer.", "Wait.")

def test_rows(node):
    pass
"""


def test_failed_server_start_is_not_a_caught_mutant(tmp_path: Path) -> None:
    """A server may not start on a busy machine; other errors of a fixture count."""
    test = tmp_path / "test_rows.py"
    test.write_text(NODE.format(error="ValueError"))
    assert first_failure(tmp_path, ("test_rows.py",)) == "test_rows.py::test_rows"
    test.write_text(NODE.format(error="DidNotStart"))
    with pytest.raises(SystemExit, match="did not start"):
        first_failure(tmp_path, ("test_rows.py",))
