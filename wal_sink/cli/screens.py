"""How `wal-sink show` lays out epochs. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from wal_sink.admin.show import AttemptView, EpochLine, Listed, Shown
from wal_sink.cli.terminal import Lines
from wal_sink.progress.status import Line, ago, byte_count, epoch_id
from wal_sink.text import counted, printable

_NUMBERS = {
    "epoch",
    "segments",
    "rows",
    "bytes",
    "partition",
    "attempt",
    "task attempt",
}
"""Columns of numbers."""

_STYLES = {
    "flushed": "green",
    "pending": "yellow",
    "damaged": "red",
    "no manifest": "red",
}


def log_screen(listed: Listed, now_us: int) -> RenderableType:
    """Lay out the epochs of a log.

    :param now_us: microseconds since 1970: times are shown as seen from then.
    """
    table = _table("epoch", "state", "segments", "rows", "bytes", "published")
    for line in listed.epochs:
        table.add_row(
            str(line.epoch),
            Text(line.state, _STYLES.get(line.state, "")),
            _number(line.segments),
            _number(line.rows),
            "" if line.bytes is None else byte_count(line.bytes),
            "" if line.published is None else ago(now_us / 1_000_000 - _seconds(line.published)),
        )
    notes = [
        f"Query {listed.query_id}, target {listed.target}.",
        f"Checkpointed: {epoch_id(listed.checkpointed)}. Flushed: {epoch_id(listed.flushed)}.",
    ]
    if listed.trimmed >= 0:
        notes.append(f"What was flushed up to epoch {listed.trimmed} is deleted from the log.")
    if listed.left_out:
        notes.append(f"Left out: {counted(listed.left_out, 'newer epoch')}; see --most.")
    notes += _problems(listed.epochs)
    parts: list[RenderableType] = [table, Text("")] if listed.epochs else []
    return Group(*parts, *map(Text, notes))


def epoch_screen(shown: Shown) -> RenderableType:
    """Lay out one epoch."""
    parts: list[RenderableType] = [
        _pairs(
            ("epoch", f"{shown.epoch} of query {shown.query_id}"),
            ("checkpointed", "yes" if shown.checkpointed else "no"),
        )
    ]
    parts += [Text(printable(problem), "red") for problem in shown.problems]
    for attempt in shown.attempts:
        parts += _attempt(attempt)
    return Group(*parts)


def _attempt(attempt: AttemptView) -> list[RenderableType]:
    refused = f", {counted(attempt.refused_rows, 'refused row')}" if attempt.refused_rows else ""
    parts: list[RenderableType] = [
        Text(""),
        _pairs(
            ("state", attempt.state),
            ("run", attempt.run_id),
            ("published", f"{attempt.published}, timestamps from {attempt.first_us} us"),
            ("holds", f"{counted(attempt.rows, 'row')}{refused}, {byte_count(attempt.bytes)}"),
            *(("source offsets", offsets) for offsets in attempt.offsets),
        ),
    ]
    parts += [Text(printable(problem), "red") for problem in attempt.problems]
    columns = _table("column", "in the stream", "in the table", "role")
    for column in attempt.columns:
        texts = (column.name, column.source, column.type, column.role)
        columns.add_row(*(Text(printable(text)) for text in texts))
    parts += [Text("\nSchema"), columns, Text("\nSegments")]
    parts.append(Fitting(_segments(attempt, short=False), _segments(attempt, short=True)))
    if attempt.sample:
        parts += [Text("\nSome rows"), sample_screen(attempt.sample)]
    return parts


class Fitting:
    """Renders the first of several layouts that fits the width; the last one where none does."""

    def __init__(self, *layouts: RenderableType) -> None:
        self._layouts = layouts

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render it."""
        unbounded = options.update(max_width=10_000)
        for layout in self._layouts[:-1]:
            if Measurement.get(console, unbounded, layout).maximum <= options.max_width:
                yield layout
                return
        yield self._layouts[-1]


def sample_screen(rows: Sequence[Mapping[str, str | None]]) -> Fitting:
    """Lay some rows out: as a table, or else each row as a block of names and values.

    :param rows: texts of the cells, by column; None is a null.
    """
    table = _table(*(printable(name) for name in rows[0]))
    blocks: list[RenderableType] = []
    for number, row in enumerate(rows, 1):
        cells = {name: "null" if value is None else value for name, value in row.items()}
        table.add_row(*(Text(c, "dim" if row[n] is None else "") for n, c in cells.items()))
        block = [Line(f"  {printable(name)}", cell) for name, cell in cells.items()]
        blocks += [Text(f"row {number}"), Lines(block)]
    return Fitting(table, Group(*blocks))


def _segments(attempt: AttemptView, *, short: bool) -> Table:
    """Return the table of segments.

    :param short: without the run in their names, which all of them have.
    """
    table = _table("partition", "attempt" if short else "task attempt", "rows", "bytes", "segment")
    for segment in attempt.segments:
        name = segment.path.rpartition("/")[2]
        prefix, run, after = name.partition(attempt.run_id)
        table.add_row(
            _number(segment.partition),
            "" if segment.task_attempt is None else str(segment.task_attempt),
            _number(segment.rows),
            byte_count(segment.bytes),
            "in the manifest"
            if segment.inline
            else f"…{after}"
            if short and run and prefix
            else name,
        )
    return table


def _table(*names: str) -> Table:
    """Return a table whose cells are as wide as what is in them; no word is broken."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold underline")
    for name in names:
        right = name in _NUMBERS
        table.add_column(Text(name), justify="right" if right else "left", no_wrap=True)
    return table


def _problems(lines: tuple[EpochLine, ...]) -> list[str]:
    return [
        f"Epoch {line.epoch}: {printable(line.problem)}"
        for line in lines
        if line.problem is not None
    ]


def _pairs(*pairs: tuple[str, str]) -> Lines:
    return Lines([Line(name, printable(value)) for name, value in pairs])


def _seconds(iso_time: str) -> float:
    """Return seconds since 1970."""
    return datetime.fromisoformat(iso_time).timestamp()


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
