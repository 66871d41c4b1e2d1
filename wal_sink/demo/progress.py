"""The progress of the queries: sampled every second for the bars, and drawn at the end."""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from wal_sink.demo.flights import rows_per_file
from wal_sink.demo.outcome import KillOutcome
from wal_sink.demo.queries import CONTROL, QUERIES, TENTH
from wal_sink.demo.stores import Stores
from wal_sink.wal.location import locate

_PERIOD_S = 1.0

_CHECKPOINTED, _VISIBLE, _UNCOMMITTED, _KILL = "#8c8c8c", "#1f6fb4", "#d62728", "#444444"


class Sample(NamedTuple):
    """Numbers of rows at one moment, by the table of the query."""

    seconds: float
    """Seconds since the first start of the application."""
    total: Mapping[str, int]
    """The rows of the source."""
    checkpointed: Mapping[str, int]
    """The rows of the epochs with a file `commits/N`."""
    visible: Mapping[str, int]
    """The rows that a reader of the table sees. Only the small tables keyed by `uuid()` are counted."""


def take_sample(
    folder: Path, stores: Stores, rows: Mapping[str, int], epochs: int, seconds: float
) -> Sample:
    """Count the rows that are visible, and then the rows that are checkpointed.

    In this order, wal_sink never has more visible rows than checkpointed rows.

    :param rows: the number of rows of each source, by its name.
    :param epochs: the number of epochs of each query. An epoch is a file of the source.
    """
    visible = {query.table: stores.count(query.table) for query in (TENTH, CONTROL)}
    total = {query.table: rows[query.source] for query in QUERIES}
    checkpointed = {}
    for query in QUERIES:
        commit = locate(str(folder / query.checkpoint)).open_checkpoint().last_commit()
        size = rows_per_file(total[query.table], epochs)
        checkpointed[query.table] = min(total[query.table], (commit + 1) * size)
    return Sample(seconds, total, checkpointed, visible)


@contextmanager
def repeated(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` every second on a thread until the `with` block ends, and once after it.

    :raises Exception: an error of `act`.
    """
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(_PERIOD_S):
            act()
        act()

    with ThreadPoolExecutor(1, "wal_sink-demo-progress") as pool:
        work = pool.submit(repeat)
        try:
            yield
        finally:
            ended.set()
    work.result()


def draw(path: Path, samples: Sequence[Sample], kills: Sequence[KillOutcome]) -> None:
    """Draw the picture into a file with the suffix `.svg`, `.png` or `.pdf`."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    ours, control = figure.subplots(1, 2, sharex=True, sharey=True)
    _panel(ours, samples, TENTH.table, "wal_sink: never a row that is not checkpointed")
    _panel(control, samples, CONTROL.table, "foreachBatch: rows of dead attempts stay")
    for axes in (ours, control):
        for kill in kills:
            axes.axvline(kill.seconds, color=_KILL, linewidth=1, linestyle=(0, (2, 2)))
    for kill in kills:
        ours.annotate(
            f"SIGKILL\n{textwrap.fill(kill.window, 14)}",
            xy=(kill.seconds, 1),
            xycoords=("data", "axes fraction"),
            xytext=(4, -4),
            textcoords="offset points",
            verticalalignment="top",
            fontsize=8,
            color=_KILL,
        )
    ours.set_ylabel("rows of the table keyed by uuid()")
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "wal_sink"}):
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _panel(axes: Axes, samples: Sequence[Sample], table: str, title: str) -> None:
    seconds = [sample.seconds for sample in samples]
    visible = [sample.visible[table] for sample in samples]
    checkpointed = [sample.checkpointed[table] for sample in samples]
    axes.step(
        seconds, checkpointed, where="post", color=_CHECKPOINTED, linewidth=2, label="checkpointed"
    )
    axes.plot(seconds, visible, color=_VISIBLE, linewidth=1.5, label="visible to a reader")
    above = [rows > limit for rows, limit in zip(visible, checkpointed, strict=True)]
    if any(above):
        axes.fill_between(
            seconds,
            checkpointed,
            visible,
            where=above,
            color=_UNCOMMITTED,
            alpha=0.5,
            linewidth=0,
            label=f"visible, not committed: {visible[-1] - checkpointed[-1]:,} for ever",
        )
    axes.set_title(title, fontsize=11)
    axes.set_xlabel("seconds")
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend(loc="lower right", facecolor="white", edgecolor="none", framealpha=1, fontsize=9)
