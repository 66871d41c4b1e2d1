"""Draws curves into files, all in one style; knows nothing of what they show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = ("#1f6fb4", "#d62728", "#2ca02c", "#9467bd", "#8c8c8c")
_SMALL = 9


def grid(rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """Make a figure of several panels with one horizontal axis in common.

    :param size: of the whole, in inches.
    :return: the figure and its panels, row by row.
    """
    figure = Figure(figsize=size, layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, sharex=True).flat)


def label(axes: Axes, title: str, across: str = "", up: str = "") -> None:
    """Say what a panel shows and in what units; the vertical axis begins at 0."""
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(across, fontsize=_SMALL)
    axes.set_ylabel(up, fontsize=_SMALL)
    axes.tick_params(labelsize=_SMALL)
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.set_major_formatter("{x:,.6g}")


def curve(axes: Axes, name: str, across: Sequence[float], values: Sequence[float]) -> None:
    """Draw a line in the next colour.

    :param name: for the legend.
    """
    colour = COLOURS[len(axes.lines)]
    axes.plot(across, values, color=colour, linewidth=1.2, label=name)
    axes.xaxis.set_major_formatter("{x:,.0f}")


def legend(axes: Axes) -> None:
    """Put the names of what is drawn beside it."""
    axes.legend(frameon=False, fontsize=_SMALL)


def save(figure: Figure, path: Path) -> None:
    """Write a figure into a file, whose suffix says the format; text stays text in SVG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "wal_sink"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
