"""The plots beside the table: rows a second over partitions, CPU by stage, latency."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.benchmarks import drawing
from tests.benchmarks.contenders.connector import DEFAULTS, TUNED
from tests.benchmarks.contenders.ours import Ours
from tests.benchmarks.figure import Figure, p99
from tests.benchmarks.figures.epochs import VISIBLE
from tests.benchmarks.run import Run
from tests.benchmarks.stages import STAGES, costs

_CONTENDERS = (Ours.name, DEFAULTS.name, TUNED.name)


def draw(
    folder: Path, runs: Sequence[Run], figures: Sequence[Figure], micro_batches: int
) -> list[Path]:
    """Draw what was measured; return the files, none for what was not.

    :param micro_batches: of each run that streams files.
    """
    plots: dict[str, Callable[[Path], bool]] = {
        "partitions.svg": lambda path: partitions(path, runs, micro_batches),
        "stages.svg": lambda path: stages(path, runs),
        "latency.svg": lambda path: latency(path, figures),
    }
    return [folder / name for name, plot in plots.items() if plot(folder / name)]


def partitions(path: Path, runs: Sequence[Run], micro_batches: int) -> bool:
    """Draw the rows a second of runs that differ in nothing but partitions, if there are some."""
    found: dict[str, dict[int, list[float]]] = {}
    rows = max((run.rows for run in runs if run.shape == "interleaved"), default=0)
    for run in runs:
        if run.shape == "interleaved" and run.rows == rows:
            places = found.setdefault(run.contender, {})
            within = min(run.partitions, rows // micro_batches)
            places.setdefault(within, []).append(run.rows_per_s)
    lines = {name: found[name] for name in _CONTENDERS if len(found.get(name, {})) > 1}
    if not lines:
        return False
    figure, (axes,) = drawing.grid(1, 1, (8, 5))
    for name, places in lines.items():
        across = sorted(places)
        middle = [statistics.median(places[each]) for each in across]
        drawing.curve(axes, name, across, middle, "o")
        drawing.spread(axes, across, [places[each] for each in across])
    drawing.logarithmic(axes, sorted(set().union(*lines.values())))
    drawing.label(
        axes,
        f"rows a second, end to end: {rows:,} rows in {micro_batches} micro-batches"
        "\nmedian, lowest and highest round",
        f"partitions in a micro-batch of {rows // micro_batches:,} rows",
        "rows a second",
    )
    drawing.legend(axes)
    drawing.save(figure, path)
    return True


def stages(path: Path, runs: Sequence[Run]) -> bool:
    """Draw whose CPU a row takes, ours beside the connector's, if that was measured."""
    splits = [split for cost in costs(runs) for split in (cost.ours, *cost.connectors)]
    if not splits:
        return False
    figure, (axes,) = drawing.grid(1, 1, (10, 5))
    drawing.stacked_bars(
        axes,
        [f"{split.shape}\n{split.contender.replace(', ', chr(10))}" for split in splits],
        {stage: [split.us.get(stage, 0.0) for split in splits] for stage in STAGES},
    )
    drawing.label(axes, "CPU of a row by stage, medians", up="microseconds a row")
    drawing.save(figure, path)
    return True


def latency(path: Path, figures: Sequence[Figure]) -> bool:
    """Draw the histogram of what epochs took from `commits/N` to a reader, if that was measured."""
    ms = [sample for figure in figures if figure.name == VISIBLE for sample in figure.samples]
    if not ms:
        return False
    figure, (axes,) = drawing.grid(1, 1, (8, 5))
    median = statistics.median(ms)
    marks = {f"median {median:.0f} ms": median, f"99 % {p99(ms):.0f} ms": p99(ms)}
    drawing.histogram(axes, ms, marks)
    drawing.label(
        axes,
        f"from commits/N until a reader has counted all rows of epoch N ({len(ms):,} epochs)",
        "milliseconds",
        "epochs",
    )
    drawing.save(figure, path)
    return True
