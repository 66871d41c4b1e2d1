"""Draws the demo: rows visible over time against rows checkpointed, beside the control."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from wal_sink.demo.queries import CONTROL, TENTH
from wal_sink.demo.report import Death
from wal_sink.demo.watch import Sample

_CHECKPOINTED, _VISIBLE, _GHOSTS, _KILL = "#8c8c8c", "#1f6fb4", "#d62728", "#444444"
_SHORT = {
    "while a task writes": "a task\nwrites",
    "between manifest and commits/N": "before\ncommits/N",
    "while an epoch is being flushed": "in the\nflush",
}


def draw(path: Path, samples: Sequence[Sample], deaths: Sequence[Death]) -> None:
    """Draw the picture into a file; its suffix says the format, for example `.svg` or `.png`.

    :raises ValueError: no such format.
    """
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    ours, control = figure.subplots(1, 2, sharex=True, sharey=True)
    _panel(ours, samples, TENTH.table, "wal_sink: never a row that is not checkpointed")
    _panel(control, samples, CONTROL.table, "foreachBatch: rows of dead attempts stay")
    for axes in (ours, control):
        for death in deaths:
            axes.axvline(death.seconds, color=_KILL, linewidth=1, linestyle=(0, (2, 2)))
    for death in deaths:
        ours.annotate(
            f"SIGKILL\n{_SHORT.get(death.window, death.window)}",
            xy=(death.seconds, 1),
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
