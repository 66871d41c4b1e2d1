"""The report of the demo: its table, its JSON, its exit code and its picture.

The picture shows visible and checkpointed rows over time, for wal_sink and for the control.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib as mpl
import msgspec
import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from wal_sink.demo.compare import compare_rows
from wal_sink.demo.kills import KILLS, KillWindow
from wal_sink.demo.queries import CONTROL, TENTH, Query, source_rows, table_rows
from wal_sink.demo.stores import Store, Stores
from wal_sink.demo.watch import Sample


class KillOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the queries after a SIGKILL."""

    window: KillWindow
    """The window that the SIGKILL hit, by the files that it left."""
    epoch: int
    rows_discarded: int
    """Rows in the log that were not checkpointed, so that Spark computes them again."""
    seconds: float
    """Time of the SIGKILL, in seconds since the first start of the application."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of rows of a table and its source."""

    query: str
    sink: str
    table: str
    target: str
    expected: int
    found: int
    missing: int
    extra: int
    examples: tuple[str, ...]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of the demo. The numbers from `expected` to `extra` are the sums of wal_sink's tables."""

    expected: int
    found: int
    missing: int
    extra: int
    control_missing: int
    """Rows that the control's table lacks."""
    control_extra: int
    """Extra rows in the control's table."""
    seconds: float
    kills: tuple[KillOutcome, ...]
    """Empty in the demo of a failover."""
    not_replicated: int
    """Rows of wal_sink that the standby lacked when it was promoted; 0 in the demo of kills."""
    tables: tuple[Comparison, ...]
    picture: str
    """Path of the picture; empty for none."""
    target: str
    """Names of the stores, separated by commas."""
    server: str
    """Titles of the stores, with their versions."""

    @property
    def conclusion(self) -> str:
        """The result of a demo without problems, in one or two sentences."""
        if self.kills:
            return (
                f"wal_sink: each row exactly once. foreachBatch, under the same {len(self.kills)} kills:"
                f" {self.control_extra:,} extra rows."
            )
        return (
            f"The promoted standby lacked {self.not_replicated:,} rows of each table. wal_sink: each row"
            f" exactly once, and nobody typed a command. foreachBatch: {self.control_missing:,} rows lost."
        )

    @property
    def problems(self) -> list[str]:
        """The reasons why the demo failed; empty if it succeeded."""
        problems = []
        if self.missing or self.extra or not self.expected:
            ours = (table for table in self.tables if table.sink == "wal_sink")
            examples = [text for table in ours for text in table.examples]
            problems.append(
                "\n  ".join(["The tables differ from the source, for example:", *examples])
            )
        if self.kills:
            if not self.control_extra:
                problems.append("The control has no extra rows, so these kills prove nothing.")
            hit = {outcome.window for outcome in self.kills}
            if missed := [kill.window for kill in KILLS if kill.window not in hit]:
                problems.append(f"No kill hit the driver {', nor '.join(missed)}.")
        else:
            if not self.not_replicated:
                problems.append("The standby lacked no rows, so this failover proves nothing.")
            if not self.control_missing:
                problems.append("The control has lost no rows, so this failover proves nothing.")
        return problems


def report(
    comparisons: Iterable[Comparison],
    stores: Stores,
    seconds: float,
    *,
    kills: Sequence[KillOutcome] = (),
    picture: str = "",
    not_replicated: int = 0,
) -> Report:
    """Return the report, with the sums over the tables of wal_sink and of the control."""
    tables = tuple(comparisons)
    ours = [table for table in tables if table.sink == "wal_sink"]
    control = [table for table in tables if table.sink != "wal_sink"]
    return Report(
        expected=sum(table.expected for table in ours),
        found=sum(table.found for table in ours),
        missing=sum(table.missing for table in ours),
        extra=sum(table.extra for table in ours),
        control_missing=sum(table.missing for table in control),
        control_extra=sum(table.extra for table in control),
        seconds=round(seconds, 1),
        kills=tuple(kills),
        not_replicated=not_replicated,
        tables=tables,
        picture=picture,
        target=stores.targets,
        server=stores.title,
    )


def comparison(query: Query, source: pa.Table, store: Store) -> Comparison:
    """Compare a query's table in a store with its source."""
    row_counts = compare_rows(source_rows(source, query), table_rows(store.rows(query)))
    counts = {**row_counts._asdict(), "examples": tuple(map(str, row_counts.examples))}
    return Comparison(
        query=query.name, sink=query.sink, table=query.table, target=store.target, **counts
    )


_CHECKPOINTED, _VISIBLE, _GHOSTS, _KILL = "#8c8c8c", "#1f6fb4", "#d62728", "#444444"
_SHORT = {
    "while a task writes": "a task\nwrites",
    "between manifest and commits/N": "before\ncommits/N",
    "while an epoch is being flushed": "in the\nflush",
}


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
            f"SIGKILL\n{_SHORT.get(kill.window, kill.window)}",
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
