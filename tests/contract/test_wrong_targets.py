"""The contract suites fail for targets with a deliberate bug."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.contract import wrong_targets
from tests.contract.wrong_targets import SUITES, WRONG, Wrong, named

PLUGINS = ("cacheprovider", "terminal", "timeout", "xdist", "faulthandler", "logging")


class Failures:
    """A pytest plug-in that records the results of tests."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.failed: list[str] = []
        self.errors: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            (self.failed if report.when == "call" else self.errors).append(report.longreprtext)
        elif report.when == "call":
            self.passed.append(report.nodeid)


def run(name: str, tests: Iterable[str]) -> Failures:
    """Run tests of a class in `wrong_targets`, in this process."""
    result = Failures()
    arguments = [
        *(f"--rootdir={Path(__file__).parents[2]}", "-c", "/dev/null", "--noconftest"),
        *("--import-mode=importlib", "--capture=no", "-W", "ignore"),
        *(option for plugin in PLUGINS for option in ("-p", f"no:{plugin}")),
        *(f"{wrong_targets.__file__}::{name}::{test}" for test in tests),
    ]
    pytest.main(arguments, [result])
    return result


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_wrong_target_is_caught(wrong: Wrong) -> None:
    """Each test that the table names fails by an assertion, not by an error in a fixture."""
    tests = wrong.caught_by.split()
    result = run(named(wrong), tests)
    assert result.errors == []
    assert len(result.failed) >= len(tests), f"{wrong.name}: {result.passed}"


@pytest.mark.parametrize("suite", SUITES)
def test_right_target_passes(suite: str) -> None:
    """The same tests pass for a target without a bug."""
    tests = {
        test for wrong in WRONG if wrong.suite is SUITES[suite] for test in wrong.caught_by.split()
    } - {
        "test_flusher_that_dies_anywhere_loses_nothing"
    }  # slow, and run for each right target in its own module
    result = run(f"TestRight{suite}", sorted(tests))
    assert result.errors + result.failed == []
    assert len(result.passed) >= len(tests)


def test_right_session_survives_a_driver_that_reconnects() -> None:
    """A session that holds its ledger row in the transaction notices that the driver reconnected."""
    result = run("TestReconnecting", ["test_restart_of_the_server_keeps_whole_windows"])
    assert result.errors + result.failed == []
    assert len(result.passed) == 1
