"""Draws the curves of the long run: the costs of rows and epochs, and the resources of the process."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks import drawing
from tests.benchmarks.figure import p99
from tests.benchmarks.long.sample import Sample


def draw(path: Path, samples: Sequence[Sample], rows: int) -> None:
    """Draw the curves into a file in the format of its suffix.

    :param rows: the rows of an epoch.
    """
    figure, panels = drawing.grid(2, 3, (12, 6.5))
    pairs = [(a, b) for a, b in itertools.pairwise(samples) if b.epochs > a.epochs]
    ends = [b.epochs for _, b in pairs]
    epochs = [sample.epochs for sample in samples]
    current = [sample for sample in samples if sample.visible_ms]
    seen_at = [item.epochs for item in current]
    cost, time, latency, memory, held, names = panels
    drawing.curve(cost, "", ends, [1e6 * cpu_s(a, b) / rows for a, b in pairs])
    drawing.label(cost, "client CPU of a row", up="microseconds")
    drawing.curve(
        time, "", ends, [1e3 * (b.seconds - a.seconds) / (b.epochs - a.epochs) for a, b in pairs]
    )
    drawing.label(time, "time of an epoch", up="milliseconds")
    drawing.curve(latency, "median", seen_at, [statistics.median(s.visible_ms) for s in current])
    drawing.curve(latency, "99 %", seen_at, [p99(s.visible_ms) for s in current])
    drawing.label(latency, "from commits/N until epoch N is flushed", up="milliseconds")
    drawing.curve(memory, "driver's Python", epochs, [sample.python_mb for sample in samples])
    drawing.curve(memory, "its JVM", epochs, [sample.jvm_mb for sample in samples])
    drawing.curve(memory, "Python workers", epochs, [sample.workers_mb for sample in samples])
    drawing.label(memory, "resident memory", up="MB")
    drawing.curve(held, "threads", epochs, [sample.threads for sample in samples])
    drawing.curve(
        held, "open files, sockets, pipes", epochs, [sample.handles for sample in samples]
    )
    drawing.label(held, "held by the driver's Python", up="number")
    drawing.curve(names, "", epochs, [sample.names for sample in samples])
    drawing.label(names, "files in the log", up="number")
    for axes in (latency, memory, held):
        drawing.legend(axes)
    for axes in (memory, held, names):
        axes.set_xlabel(f"epochs flushed, of {rows:,} rows each", fontsize=9)
    drawing.save(figure, path)


def cpu_s(first: Sample, last: Sample) -> float:
    """Return the CPU seconds of an epoch between two samples."""
    return (last.client_cpu_s - first.client_cpu_s) / (last.epochs - first.epochs)
