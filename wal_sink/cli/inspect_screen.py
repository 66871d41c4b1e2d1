"""How `wal-sink inspect` shows what it found. No I/O."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from wal_sink.admin.inspect import EpochLine, Inspected
from wal_sink.admin.inspect_epoch import AttemptView, InspectedEpoch
from wal_sink.clock import iso
from wal_sink.model.records import FlushedEpoch
from wal_sink.progress.printable import printable
from wal_sink.progress.quantities import byte_count, epoch_id

_STYLES = {
    "flushed": "green",
    "begun": "cyan",
    "waiting": "yellow",
    "damaged": "red",
    "no manifest": "red",
}


def log_screen(found: Inspected) -> RenderableType:
    """Lay out the epochs of a log."""
    table = Table()
    for name in ("epoch", "generation"):
        table.add_column(name, justify="right")
    table.add_column("state", no_wrap=True)
    for name in ("segments", "rows", "bytes"):
        table.add_column(name, justify="right")
    table.add_column("published")
    for line in found.epochs:
        table.add_row(
            str(line.epoch),
            "" if line.generation is None else str(line.generation),
            Text(line.state, _STYLES.get(line.state, "")),
            _number(line.segments),
            _number(line.rows),
            "" if line.bytes is None else byte_count(line.bytes),
            (line.published or "").partition("+")[0],
        )
    first = (
        f"Query {found.query_id}. Checkpointed: {epoch_id(found.checkpointed)}. Flushed:"
        f" {epoch_id(found.flushed)}. Times are UTC."
    )
    notes = [first]
    if found.left_out_flushed or found.left_out_waiting:
        notes.append(
            f"Left out: {found.left_out_flushed:,} flushed epochs before these, and"
            f" {found.left_out_waiting:,} others after them; see --most."
        )
    if not found.begun_known:
        notes.append("What is begun is listed as waiting: the target was not asked, see --ledger.")
    notes += _problems(found.epochs)
    parts: list[RenderableType] = [table] if found.epochs else []
    return Group(*parts, *map(Text, notes))


def epoch_screen(found: InspectedEpoch) -> RenderableType:
    """Lay out one epoch."""
    parts: list[RenderableType] = [
        _pairs(
            ("epoch", f"{found.epoch} of query {found.query_id}"),
            ("checkpointed", "yes" if found.checkpointed else "no"),
            ("flushed", _flushed(found.flushed) if found.flushed else "no, or long ago"),
        )
    ]
    if found.begun:
        begun = f"generation {found.begun.generation}, timestamps from {found.begun.base_us} us"
        parts.append(_pairs(("begun", begun)))
    if found.decision:
        said = f"{found.decision.verb} by {found.decision.by}: {found.decision.why}"
        parts.append(_pairs(("given up", said), ("kept in", found.decision.where)))
    parts += [Text(printable(problem), "red") for problem in found.problems]
    for attempt in found.attempts:
        parts += _attempt(attempt)
    if found.flushed and not found.attempts:
        parts.append(Text("Its segments are trimmed: its rows are in the table."))
    return Group(*parts)


def _attempt(found: AttemptView) -> list[RenderableType]:
    parts: list[RenderableType] = [
        Text(""),
        _pairs(
            ("generation", f"{found.generation}, {found.state or 'state unknown'}"),
            ("run", found.run_id),
            ("published", found.published),
            ("holds", f"{found.rows:,} rows, {byte_count(found.bytes)}"),
            *(("source offsets", offsets) for offsets in found.offsets),
        ),
    ]
    parts += [Text(printable(problem), "red") for problem in found.problems]
    columns = Table("column", "in the stream", "in the table", "role", title="Schema")
    for column in found.columns:
        name = f"{column.column} " if column.column else ""
        texts = (column.name, column.source, f"{name}{column.type}", column.role)
        columns.add_row(*(Text(printable(text)) for text in texts))
    segments = Table("segment", "partition", "task attempt", "rows", "bytes", title="Segments")
    segments.columns[0].overflow = "fold"
    for segment in found.segments:
        segments.add_row(
            segment.path.rpartition("/")[2],
            _number(segment.partition),
            "" if segment.task_attempt is None else str(segment.task_attempt),
            _number(segment.rows),
            byte_count(segment.bytes),
        )
    parts += [columns, segments]
    if found.sample:
        parts.append(_sample(found.sample))
    return parts


def _sample(rows: tuple[dict[str, str | None], ...]) -> Table:
    table = Table(title="Some rows")
    for name in rows[0]:
        table.add_column(Text(printable(name)), overflow="fold")
    for row in rows:
        table.add_row(
            *(Text("null", "dim") if value is None else Text(value) for value in row.values())
        )
    return table


def _flushed(record: FlushedEpoch) -> str:
    """Say when, and with which write timestamps."""
    return (
        f"{iso(record.recorded_us)}, generation {record.generation}, {record.rows:,} rows,"
        f" {byte_count(record.bytes)}; begun {iso(record.begun_us)}; published"
        f" {iso(record.published_us)}; timestamps from {record.base_us} us"
    )


def _problems(lines: tuple[EpochLine, ...]) -> list[str]:
    return [
        f"Epoch {line.epoch}: {printable(line.problem)}"
        for line in lines
        if line.problem is not None
    ]


def _pairs(*pairs: tuple[str, str]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(Text(name, "bold"), Text(printable(value)))
    return table


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
