"""What is measured as the simulator's power: which bugs count, and in which histories each is played."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.catalogue import BUGS, UNPLAYED, Change, UnfitBugError, parse
from tests.simulator import reach
from tests.simulator.without import is_played, named


def test_every_bug_counts_or_says_why_not() -> None:
    """A bug of code that runs in a history counts, or a word behind its name says why not."""
    counted = {bug.name for bug in named("all")}
    assert len(counted) > 150
    for bug in BUGS:
        assert (bug.name in counted) == (is_played(bug) and not bug.unplayed)
        assert not bug.unplayed or is_played(bug), f"{bug.name}: its package says it already"


def test_a_reason_that_is_none_is_refused() -> None:
    """That nothing has found a bug is no reason."""
    entry = "[test_rows]\nrows are lost [{}]\n    flush.write: send( => give("
    assert [bug.unplayed for word in UNPLAYED for bug in parse(entry.format(word))] == [*UNPLAYED]
    with pytest.raises(UnfitBugError, match="survived"):
        parse(entry.format("survived"))


CODE = """
LIMIT = 3

def flush(rows):
    done = []
    for row in rows:
        if row > 1:
            try:
                done.append(1 // row)
            finally:
                done.append(row)
        else:
            done.append(0)
    return done
"""


@pytest.mark.parametrize(
    ("old", "new", "rows", "marked"),
    [
        ("append(0)", "append(1)", [2], False),
        ("append(0)", "append(1)", [1, 2], True),
        ("append(row)", "append(9)", [1], False),
        ("append(row)", "append(9)", [2], True),
        ("row > 1", "row > 2", [], False),
        ("row > 1", "row > 2", [1, 3], False),
        ("row > 1", "row > 2", [2], True),
        ("return done", "return []", [], False),
        ("return done", "return []", [1], True),
        ("        else:\n            done.append(0)\n", "", [1], True),
    ],
)
def test_a_history_comes_to_the_place_of_a_bug(
    old: str, new: str, rows: list[int], marked: bool
) -> None:
    """Where the statement that it changes is run, and an expression has another value than without it."""
    change = Change(Path("flush.py"), CODE, CODE.replace(old, new))
    codes, everywhere = reach.marked({7: change})
    marks: set[int] = set()
    module = {reach.MARKS: marks, reach.BOTH: reach.Both(marks)}
    exec(codes[change.file], module)
    module["flush"](rows)  # type: ignore[operator]
    assert (marks == {7}) is marked
    assert not everywhere


def test_what_runs_as_a_module_is_loaded_has_no_place() -> None:
    """Such a bug is played in every history."""
    change = Change(Path("flush.py"), CODE, CODE.replace("LIMIT = 3", "LIMIT = 4"))
    assert reach.marked({7: change})[1] == {7}
