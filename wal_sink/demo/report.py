"""Reports what the demo found: the values of its table, its JSON and its exit code; and its picture.

The picture has the rows visible over time against those checkpointed, beside the control.
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
from wal_sink.demo.queries import CONTROL, TENTH, Query, in_source, in_table
from wal_sink.demo.stores import Store, Stores
from wal_sink.demo.watch import Sample


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """One SIGKILL."""

    window: KillWindow
    """Which one was hit, read from what was durable afterwards."""
    epoch: int
    rows_discarded: int
    """Rows that were logged and not checkpointed: thrown away and computed again. Those that only the memory
    of a task had do not count."""
    seconds: float
    """From when the demo began to watch, right before the application's first start, to the SIGKILL."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A table beside its source, counted in rows."""

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
    """The outcome; the first four numbers are of the tables that wal_sink wrote, together."""

    expected: int
    found: int
    missing: int
    extra: int
    control_missing: int
    """Rows that the control had written, and that are lost."""
    control_extra: int
    """Ghosts or doubles in the control's table."""
    seconds: float
    kills: tuple[Death, ...]
    """None, where the database failed over."""
    not_replicated: int
    """Rows of wal_sink that the standby lacked when it was promoted. The log brought them again."""
    tables: tuple[Comparison, ...]
    picture: str
    """Path of the picture; empty: there is none."""
    target: str
    server: str
    """Which one, or which ones, the rows went to."""

    @property
    def conclusion(self) -> str:
        """What the demo has shown, where it has no problems."""
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
        """What keeps the demo from having shown what it is for; empty when it has."""
        problems = []
        if self.missing or self.extra or not self.expected:
            ours = (table for table in self.tables if table.sink == "wal_sink")
            examples = [text for table in ours for text in table.examples]
            problems.append(
                "\n  ".join(["The tables differ from the source, for example:", *examples])
            )
        if self.kills:
            if not self.control_extra:
                problems.append("The control has no extra rows: these kills proved nothing.")
            hit = {death.window for death in self.kills}
            if missed := [kill.window for kill in KILLS if kill.window not in hit]:
                problems.append(f"No kill hit the driver {', nor '.join(missed)}.")
        else:
            if not self.not_replicated:
                problems.append("The standby lacked no row: this failover proved nothing.")
            if not self.control_missing:
                problems.append("The control has lost no row: this failover proved nothing.")
        return problems


def report(
    comparisons: Iterable[Comparison],
    stores: Stores,
    seconds: float,
    *,
    kills: Sequence[Death] = (),
    picture: str = "",
    not_replicated: int = 0,
) -> Report:
    """Add up the tables that wal_sink wrote, and those of the control."""
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
    """Compare a query's table in a store with the source of its rows."""
    row_counts = compare_rows(in_source(source, query), in_table(store.rows(query)))
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
