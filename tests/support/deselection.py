"""Selects the tests of `make test-all`: those marked `test_all` run only with WAL_SINK_TEST=all."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest

_MOST_KILLS = 40
"""The minimum of `most_kills` of a contract suite in `make test-all`."""

_left_out: Counter[str] = Counter()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests marked `test_all`, or raise the number of kills in the contract suites."""
    if os.environ.get("WAL_SINK_TEST") == "all":
        suites: set[Any] = {getattr(item, "cls", None) for item in items}
        for suite in suites:
            if getattr(suite, "most_kills", _MOST_KILLS) < _MOST_KILLS:
                suite.most_kills = _MOST_KILLS
        return
    out = [item for item in items if item.get_closest_marker("test_all")]
    if out:
        config.hook.pytest_deselected(items=out)
        remaining = set(map(id, out))
        items[:] = [item for item in items if id(item) not in remaining]
        _left_out.update(item.nodeid.split("::")[0] for item in out)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the numbers of deselected tests to the main process (xdist)."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = dict(_left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the numbers of deselected tests from one process; all have the same."""
    if not _left_out:
        _left_out.update(getattr(node, "workeroutput", {}).get("left_out", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the number of deselected tests of each file."""
    if _left_out:
        terminalreporter.section("left out: `make test-all` runs these, too")
        for file, number in sorted(_left_out.items()):
            terminalreporter.write_line(f"{number:4} of {file}")
