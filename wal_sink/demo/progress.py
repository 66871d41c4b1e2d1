"""The progress of the queries over time, measured every second and drawn at the end.

A sample has two numbers for each query: how many rows are checkpointed, and how many rows a reader sees.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Self

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from wal_sink.demo.outcome import WINDOWS, KillOutcome
from wal_sink.demo.queries import CONTROL, QUERIES, TENTH, Query, rows_per_file
from wal_sink.demo.stores import Stores
from wal_sink.errors import WalSinkError
from wal_sink.wal.location import locate
from wal_sink.wal.store import newest

_PERIOD_S = 1.0
_COUNTABLE = 100_000
"""The most rows of a table that is counted, since the count of a larger table is slower than the stream."""

_CHECKPOINTED, _VISIBLE, _GHOSTS, _KILL = "#8c8c8c", "#1f6fb4", "#d62728", "#444444"


class Progress(NamedTuple):
    """The progress of a query, in rows."""

    total: int
    visible: int
    """The rows of the table. For a large table, the rows that are flushed according to the log."""
    checkpointed: int
    """The rows of the epochs with a file `commits/N`."""


class Sample(NamedTuple):
    """The progress of all queries at one moment."""

    seconds: float
    """Seconds since the watch began."""
    progress: Mapping[str, Progress]
    """The progress by table."""


class Watch:
    """Takes samples on a thread until the `with` block ends. Then it raises the error of a failed sample.

    :param rows: the number of rows of each source, by its name.
    :param epochs: the number of epochs of each query.
    :param on_sample: called with each sample, on the thread.
    """

    def __init__(
        self,
        folder: Path,
        stores: Stores,
        rows: Mapping[str, int],
        epochs: int,
        on_sample: Callable[[Sample], None],
    ) -> None:
        self.samples: list[Sample] = []
        self._folder, self._stores, self._rows = folder, stores, rows
        self._epochs, self._on_sample = epochs, on_sample
        self._began_s = time.monotonic()
        self._left = threading.Event()
        self._pool = ThreadPoolExecutor(1, "wal_sink-demo-watch")

    @property
    def seconds(self) -> float:
        """Seconds since the watch began."""
        return time.monotonic() - self._began_s

    def __enter__(self) -> Self:
        self._work = self._pool.submit(self._take_until_left)
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._pool.shutdown()
        self._work.result()

    def _take_until_left(self) -> None:
        while not self._left.wait(_PERIOD_S):
            self._take()
        self._take()

    def _take(self) -> None:
        progress = {query.table: self._progress(query) for query in QUERIES}
        self.samples.append(Sample(self.seconds, progress))
        self._on_sample(self.samples[-1])

    def _progress(self, query: Query) -> Progress:
        total = self._rows[query.source]
        size = rows_per_file(total, self._epochs)  # each epoch is one file
        # A row of wal_sink is checkpointed before it is visible, so `visible` is read first.
        if total > _COUNTABLE:
            visible = min(total, (self._flushed(query) + 1) * size)
        else:
            visible = self._stores.count(query.table)
        return Progress(total, visible, min(total, (self._checkpointed(query) + 1) * size))

    def _checkpointed(self, query: Query) -> int:
        return locate(str(self._folder / query.checkpoint)).open_checkpoint().last_commit()

    def _flushed(self, query: Query) -> int:
        location = locate(str(self._folder / query.checkpoint))
        try:
            state = newest(location.open_log(location.open_checkpoint().query_id()))
        except WalSinkError:
            return -1  # the query has not started
        return -1 if state is None else min(target.mark.epoch for target in state.targets)


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
            f"SIGKILL\n{WINDOWS.get(kill.window, kill.window)}",
            xy=(kill.seconds, 1),
            xycoords=("data", "axes fraction"),
            xytext=(-4, -4),
            textcoords="offset points",
            horizontalalignment="right",
            verticalalignment="top",
            fontsize=8,
            color=_KILL,
        )
    ours.set_ylabel("rows of the table keyed by uuid()")
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "wal_sink"}):
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _panel(axes: Axes, samples: Sequence[Sample], table: str, title: str) -> None:
    seconds = [sample.seconds for sample in samples]
    visible = [sample.progress[table].visible for sample in samples]
    checkpointed = [sample.progress[table].checkpointed for sample in samples]
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
            color=_GHOSTS,
            alpha=0.5,
            linewidth=0,
            label=f"visible, not committed: {visible[-1] - checkpointed[-1]:,} for ever",
        )
    axes.set_title(title, fontsize=11)
    axes.set_xlabel("seconds")
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend(loc="lower right", facecolor="white", edgecolor="none", framealpha=1, fontsize=9)
