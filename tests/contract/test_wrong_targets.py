"""The shipped contract suites catch targets that are wrong on purpose."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.contract import wrong_targets
from tests.contract.wrong_targets import SUITES, WRONG, Wrong, named

PLUGINS = ("cacheprovider", "terminal", "timeout", "xdist", "faulthandler", "logging")
"""What belongs to the run outside."""


class Failures:
    """A plug-in that notes what becomes of tests."""

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


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.what)
def test_wrong_target_is_caught(wrong: Wrong) -> None:
    """By an assertion of each test that the table names, not by an accident before it."""
    tests = wrong.caught_by.split()
    result = run(named(wrong), tests)
    assert result.errors == []
    assert len(result.failed) >= len(tests), f"{result.passed}: {wrong.what}"


@pytest.mark.parametrize("suite", SUITES)
def test_right_target_passes(suite: str) -> None:
    """What these tests say of the wrong ones is not due to how they are run."""
    tests = {
        test for wrong in WRONG if wrong.suite is SUITES[suite] for test in wrong.caught_by.split()
    } - {
        "test_flusher_that_dies_anywhere_loses_nothing"
    }  # long, and of each suite in its own module
    result = run(f"TestRight{suite}", sorted(tests))
    assert result.errors + result.failed == []
    assert len(result.passed) >= len(tests)


def test_right_session_survives_a_driver_that_reconnects() -> None:
    """The session proves its transaction; the wrong one of the same driver is caught by the same test."""
    result = run("TestReconnecting", ["test_restart_of_the_server_keeps_whole_windows"])
    assert result.errors + result.failed == []
    assert len(result.passed) == 1
