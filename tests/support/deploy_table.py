"""The table of systems that were tested with the sink, such as clusters; pytest prints it at the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

import pytest

_PROPERTY = "deploy_table_row"


class Row(NamedTuple):
    """A row of the table."""

    system: str
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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table."""
    rows = [
        Row(*json.loads(value))
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, value in report.user_properties
        if name == _PROPERTY
    ]
    if rows:
        terminalreporter.section("systems that were tested with the sink")
        for line in table(sorted(rows)):
            terminalreporter.write_line(line)


def table(rows: list[Row]) -> list[str]:
    """Return the lines of the table."""
    cells = [("system", "version", "faults", "expected", "found")]
    cells += [tuple(map(str, row)) for row in rows]  # type: ignore[misc]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
