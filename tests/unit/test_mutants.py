"""The deliberate bugs of `make mutants` still fit the code: a bug that cannot be put in proves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.__main__ import first_failure
from tests.mutants.bugs import BUGS, Bug

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_can_be_put_in(bug: Bug) -> None:
    """What it replaces stands in its file exactly once, and the tests that are to catch it exist."""
    assert (ROOT / bug.file).read_text(encoding="utf-8").count(bug.right) == 1
    assert bug.right != bug.wrong
    assert [test for test in bug.tests if not (ROOT / test.partition("::")[0]).exists()] == []


NODE = """
import pytest
from wal_sink.testing.cassandra.node import CassandraDidNotStart

@pytest.fixture
def node():
    raise {error}("It gave no answer.", "Wait.")

def test_rows(node):
    pass
"""


def test_a_server_that_does_not_start_has_caught_no_bug(tmp_path: Path) -> None:
    """A busy machine is to blame; any other error of a fixture is the bug's."""
    test = tmp_path / "test_rows.py"
    test.write_text(NODE.format(error="ValueError"))
    assert first_failure(tmp_path, ("test_rows.py",)) == "test_rows.py::test_rows"
    test.write_text(NODE.format(error="CassandraDidNotStart"))
    with pytest.raises(SystemExit, match="did not start"):
        first_failure(tmp_path, ("test_rows.py",))
