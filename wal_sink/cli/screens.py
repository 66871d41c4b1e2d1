"""How `wal-sink show` lays out epochs. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from wal_sink.admin.show import Attempt, Details, Shown
from wal_sink.cli.terminal import facts
from wal_sink.progress.status import ago, byte_count, epoch_id
from wal_sink.text import counted, printable

_STYLES = {
    "flushed": "green",
    "pending": "yellow",
    "damaged": "red",
    "no manifest": "red",
}

_MOST_CHARACTERS = 80
"""Characters after which a value is cut."""


def log_screen(shown: Shown, now_us: int) -> RenderableType:
    """Lay out the epochs of a log, and the details of one.

    :param now_us: microseconds since 1970: times are shown as seen from then.
    """
    table = _table("epoch", "state", "segments", "rows", "bytes", "published")
    for attempt in shown.epochs:
        at = attempt.published and datetime.fromisoformat(attempt.published).timestamp()
        table.add_row(
            str(attempt.epoch),
            Text(attempt.state, _STYLES.get(attempt.state, "")),
            *("" if count is None else f"{count:,}" for count in (attempt.segments, attempt.rows)),
            "" if attempt.bytes is None else byte_count(attempt.bytes),
            ago(now_us / 1_000_000 - at) if at else "",
        )
    notes = [
        f"Query {shown.query_id}, target {shown.target}.",
        f"Checkpointed: {epoch_id(shown.checkpointed)}. Flushed: {epoch_id(shown.flushed)}.",
    ]
    if shown.trimmed >= 0:
        notes.append(f"What was flushed up to epoch {shown.trimmed} is deleted from the log.")
    if shown.left_out:
        notes.append(f"Left out: {counted(shown.left_out, 'newer epoch')}; see --most.")
    notes += [f"Epoch {one.epoch}: {printable(one.problem)}" for one in shown.epochs if one.problem]
    parts: list[RenderableType] = [table, Text("")] if shown.epochs else []
    parts += map(Text, notes)
    for attempt in shown.epochs:
        if attempt.details is not None:
            parts += _details(attempt, attempt.details)
    return Group(*parts)


def _details(attempt: Attempt, details: Details) -> Iterator[RenderableType]:
    yield facts(
        ("\nrun", f"\n{attempt.run_id}"),
        ("published", f"{attempt.published}, timestamps from {details.first_us} us"),
        ("refused rows", f"{attempt.refused_rows:,}"),
        *(("source offsets", offsets) for offsets in details.offsets),
    )
    columns = _table("column", "in the stream", "in the table", "role")
    for column in details.columns:
        texts = (column.name, column.source, column.type, column.role)
        columns.add_row(*(Text(printable(text)) for text in texts))
    segments = _table("rows", "bytes", "segment")
    for segment in details.segments:
        where = segment.path if segment.is_file else "in the manifest"
        segments.add_row(f"{segment.rows:,}", byte_count(segment.bytes), where)
    yield from (Text("\nSchema"), columns, Text("\nSegments"), segments)
    yield from sample_screen(details.sample)


def sample_screen(rows: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """Lay some rows out, each as a block of names and values.

    :param rows: values by column, as `json_value` has them.
    """
    if rows:
        yield Text("\nSome rows")
    for number, row in enumerate(rows, 1):
        yield Text(f"row {number}")
        yield facts(*((f"  {printable(name)}", _cell(value)) for name, value in row.items()))


def _cell(value: Any) -> str:
    """Return a value as text; a long one is cut."""
    text = printable(value if isinstance(value, str) else msgspec.json.encode(value).decode())
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1] + "…"


def _table(*names: str) -> Table:
    """Return a table that breaks no word of a cell, except in paths."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold underline")
    for name in names:
        right = name in {"epoch", "segments", "rows", "bytes"}
        table.add_column(
            Text(name),
            justify="right" if right else "left",
            no_wrap=name != "segment",
            overflow="fold",
        )
    return table
