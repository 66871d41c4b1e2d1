"""Draws curves into files, in one style."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = ("#1f6fb4", "#d62728", "#2ca02c", "#9467bd", "#8c8c8c")
_SMALL = 9


def grid(rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels that share a horizontal axis.

    :param size: the size of the figure in inches.
    :return: the figure and its panels, row by row.
    """
    figure = Figure(figsize=size, layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, sharex=True).flat)


def label(axes: Axes, title: str, across: str = "", up: str = "") -> None:
    """Set title and units of a panel; its vertical axis begins at 0."""
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(across, fontsize=_SMALL)
    axes.set_ylabel(up, fontsize=_SMALL)
    axes.tick_params(labelsize=_SMALL)
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.set_major_formatter("{x:,.6g}")


def curve(axes: Axes, name: str, across: Sequence[float], values: Sequence[float]) -> None:
    """Draw a line in the next colour.

    :param name: the name in the legend.
    """
    colour = COLOURS[len(axes.lines)]
    axes.plot(across, values, color=colour, linewidth=1.2, label=name)
    axes.xaxis.set_major_formatter("{x:,.0f}")


def legend(axes: Axes) -> None:
    """Draw the legend of a panel."""
    axes.legend(frameon=False, fontsize=_SMALL)


def save(figure: Figure, path: Path) -> None:
    """Write a figure to a file in the format of its suffix; text in SVG stays text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "wal_sink"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
