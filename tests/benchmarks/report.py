"""The output of `make bench`."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Sequence
from itertools import groupby

import msgspec
from rich.console import Console
from rich.table import Table

from tests.benchmarks.figure import Figure
from tests.benchmarks.run import Run
from tests.benchmarks.sizes import Sizes


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All results."""

    version: str
    """The version of Cassandra."""
    python: str
    processors: int | None
    load: float
    """The load average before the benchmark; on a busy machine the figures are wrong."""
    sizes: Sizes
    seconds: dict[str, float]
    """The duration of each part."""
    runs: list[Run]
    figures: list[Figure]
    wrong: list[str]
    """Runs that failed or whose rows are wrong."""


def machine() -> dict[str, object]:
    """Return the fields of a report about the machine."""
    return {
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "load": os.getloadavg()[0],
    }


def show(report: Report, console: Console) -> None:
    """Print a report."""
    if report.runs:
        console.print(_runs(report.runs))
    console.print(_figures(report.figures))
    took = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in report.seconds.items())
    console.print(f"{took}; load {report.load:.1f} on {report.processors} processors before")
    verdicts = [figure.met for figure in report.figures if figure.target]
    missed, unknown = verdicts.count(False), verdicts.count(None)
    console.print(
        f"{verdicts.count(True)} targets met, {missed} missed, {unknown} not measured, of {len(verdicts)}"
    )
    for line in report.wrong:
        console.print(f"[red]failed, or rows are wrong:[/red] {line}", soft_wrap=True)


def _runs(runs: Sequence[Run]) -> Table:
    table = Table("shape", "contender", title="median (lowest to highest)", title_justify="left")
    for name in (
        "rows",
        "rows/s",
        "client CPU us/row",
        "server CPU us/row",
    ):
        table.add_column(name, justify="right")

    def key(run: Run) -> tuple[str, int, str]:
        return run.shape, run.rows, run.contender

    for (shape, rows, contender), group in groupby(sorted(runs, key=key), key):
        same = list(group)
        table.add_row(
            shape,
            contender,
            f"{rows:,}",
            _spread([run.rows_per_s for run in same], "{:,.0f}".format),
            _spread([run.client_us for run in same], "{:.1f}".format),
            _spread([run.server_us for run in same], "{:.1f}".format),
        )
    return table


def _figures(figures: Sequence[Figure]) -> Table:
    table = Table("figure", title="figures and their targets", title_justify="left")
    table.add_column("median (lowest to highest)", justify="right")
    for name in ("unit", "target", ""):
        table.add_column(name)
    for figure in figures:
        table.add_row(
            figure.name + (f"\n  {figure.note}" if figure.note else ""),
            _spread(figure.values, "{:.3g}".format) if figure.values else "not measured",
            figure.unit,
            str(figure.target or ""),
            {True: "[green]met[/green]", False: "[red]missed[/red]", None: ""}[figure.met],
        )
    return table


def _spread(values: Sequence[float], text: Callable[[float], str]) -> str:
    median = text(statistics.median(values))
    if len(values) == 1:
        return median
    return f"{median} ({text(min(values))} to {text(max(values))})"
