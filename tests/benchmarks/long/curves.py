"""Draws the long run: what a row and an epoch cost, and what the process holds, against the epochs."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.benchmarks.long.sample import Sample, p99

_COLOURS = ("#1f6fb4", "#d62728")


def draw(path: Path, samples: Sequence[Sample], rows: int) -> None:
    """Draw the curves into a file, whose suffix says the format.

    :param rows: of an epoch.
    """
    figure = Figure(figsize=(11, 6), layout="constrained")
    (cost, time, latency), (memory, held, names) = figure.subplots(2, 3, sharex=True)
    pairs = [(a, b) for a, b in itertools.pairwise(samples) if b.epochs > a.epochs]
    ends = [b.epochs for _, b in pairs]
    epochs = [each.epochs for each in samples]
    _panel(
        cost,
        "client CPU, us a row",
        ends,
        {"": [1e6 * cpu_s(a, b) / rows for a, b in pairs]},
    )
    _panel(
        time,
        "milliseconds an epoch",
        ends,
        {"": [1e3 * (b.seconds - a.seconds) / (b.epochs - a.epochs) for a, b in pairs]},
    )
    seen = [each for each in samples if each.visible_ms]
    _panel(
        latency,
        "commits/N to flushed, ms",
        [each.epochs for each in seen],
        {
            "median": [statistics.median(each.visible_ms) for each in seen],
            "99 %": [p99(each.visible_ms) for each in seen],
        },
    )
    _panel(
        memory,
        "resident memory, MB",
        epochs,
        {"Python": [s.python_mb for s in samples], "JVM": [s.jvm_mb for s in samples]},
    )
    _panel(
        held,
        "of the driver's Python",
        epochs,
        {"threads": [s.threads for s in samples], "handles": [s.handles for s in samples]},
    )
    _panel(names, "files in the log", epochs, {"": [s.names for s in samples]})
    for axes in (memory, held, names):
        axes.set_xlabel(f"epochs of {rows:,} rows")
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "wal_sink"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def cpu_s(first: Sample, last: Sample) -> float:
    """Return the CPU seconds of an epoch between two samples."""
    return (last.client_cpu_s - first.client_cpu_s) / (last.epochs - first.epochs)


def _panel(
    axes: Axes, title: str, epochs: Sequence[int], lines: dict[str, Sequence[float]]
) -> None:
    for colour, (label, values) in zip(_COLOURS, lines.items(), strict=False):
        axes.plot(epochs, values, color=colour, linewidth=1.2, label=label)
    axes.set_title(title, fontsize=10)
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    if len(lines) > 1:
        axes.legend(frameon=False, fontsize=9)
