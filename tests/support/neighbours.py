"""What only `make test-all` runs, and the table of the neighbours: what people run beside the sink.

A test marked `test_all` runs with WAL_SINK_TEST=all only. What was left out is printed at the end.
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
"""In a test of a slow target's contract suite, where all is asked for."""


class Row(NamedTuple):
    """One row of the table."""

    neighbour: str
    version: str
    faults: str
    """What was done to it, and how often."""
    expected: int
    """Rows."""
    found: int


Counted = Callable[[Row], None]


@pytest.fixture
def counted(record_property: Callable[[str, object], None]) -> Counted:
    """Return a function that adds a row to the table, and fails where other rows were found than expected."""

    def add(row: Row) -> None:
        record_property(_PROPERTY, json.dumps(row))
        assert row.found == row.expected, row

    return add


_left_out: Counter[str] = Counter()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes long, unless all is asked for; and most kills in the suites of slow targets."""
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
    """Hand over what was left out, where tests run in several processes (xdist)."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = dict(_left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what another process has left out, unless it died; all have left out the same."""
    if not _left_out:
        _left_out.update(getattr(node, "workeroutput", {}).get("left_out", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table, and what was left out."""
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
    """Lay the rows out below each other."""
    cells = [("neighbour", "version", "faults", "expected", "found")]
    cells += [tuple(map(str, row)) for row in rows]  # type: ignore[misc]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
