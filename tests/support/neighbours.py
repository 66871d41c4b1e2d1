"""Selects the tests of `make test-all`, and prints the table of systems that were tested beside the sink.

A test marked `test_all` runs only with WAL_SINK_TEST=all. Pytest prints the number of deselected tests.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

_PROPERTY = "neighbour"
_MOST_KILLS = 40
"""The minimum of `most_kills` of a contract suite in `make test-all`."""


class Row(NamedTuple):
    """A row of the table."""

    neighbour: str
    version: str
    faults: str
    """The faults that were injected, with their number."""
    expected: int
    """The number of rows that the target must have."""
    found: int


Counted = Callable[[Row], None]


@pytest.fixture
def counted(record_property: Callable[[str, object], None]) -> Counted:
    """Return a function that adds a row to the table, and fails if the numbers of rows differ."""

    def add(row: Row) -> None:
        record_property(_PROPERTY, json.dumps(row))
        assert row.found == row.expected, row

    return add


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
    """Print the table, and the numbers of deselected tests."""
    rows = [
        Row(*json.loads(value))
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, value in report.user_properties
        if name == _PROPERTY
    ]
    if rows:
        terminalreporter.section("neighbours")
        for line in table(sorted(rows)):
            terminalreporter.write_line(line)
    if _left_out:
        terminalreporter.section("left out: `make test-all` runs these, too")
        for file, number in sorted(_left_out.items()):
            terminalreporter.write_line(f"{number:4} of {file}")


def table(rows: list[Row]) -> list[str]:
    """Return the lines of the table."""
    cells = [("neighbour", "version", "faults", "expected", "found")]
    cells += [tuple(map(str, row)) for row in rows]  # type: ignore[misc]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
