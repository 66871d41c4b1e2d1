"""The deliberate bugs of `make mutants` still fit the code: a bug that cannot be put in proves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.bugs import BUGS, Bug

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_can_be_put_in(bug: Bug) -> None:
    """What it replaces stands in its file exactly once, and the tests that are to catch it exist."""
    assert (ROOT / bug.file).read_text(encoding="utf-8").count(bug.right) == 1
    assert bug.right != bug.wrong
    assert [test for test in bug.tests if not (ROOT / test.partition("::")[0]).exists()] == []
