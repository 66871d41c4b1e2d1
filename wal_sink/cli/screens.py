"""The screen of `wal-sink show`. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from wal_sink.admin.show import Attempt, AttemptDetails, EpochList
from wal_sink.cli.terminal import fact_table
from wal_sink.errors import printable
from wal_sink.progress.status import ago, byte_count, epoch_id
from wal_sink.units import counted

_STYLES = {
    "flushed": "green",
    "pending": "yellow",
    "damaged": "red",
    "no manifest": "red",
}

_MOST_CHARACTERS = 80
"""The longest text of a value; longer texts are cut."""


def log_screen(shown: EpochList, now_us: int) -> RenderableType:
    """Return the screen with a list of epochs, and the details of a single epoch.

    :param now_us: the present time, microseconds since 1970. The screen has the age of each epoch.
    """
    table = _table("epoch", "state", "segments", "rows", "bytes", "published")
    for attempt in shown.epochs:
        published = attempt.published and datetime.fromisoformat(attempt.published).timestamp()
        table.add_row(
            str(attempt.epoch),
            Text(attempt.state, _STYLES.get(attempt.state, "")),
            *("" if count is None else f"{count:,}" for count in (attempt.segments, attempt.rows)),
            "" if attempt.bytes is None else byte_count(attempt.bytes),
            ago(now_us / 1_000_000 - published) if published else "",
        )
    notes = [
        f"Query {shown.query_id}, target {shown.target}.",
        f"Checkpointed: {epoch_id(shown.checkpointed)}. Flushed: {epoch_id(shown.flushed)}.",
    ]
    if shown.trimmed >= 0:
        notes.append(f"The files of epochs up to epoch {shown.trimmed} are deleted from the log.")
    if shown.left_out:
        notes.append(f"Left out: {counted(shown.left_out, 'newer epoch')}; see --most.")
    notes += [
        f"Epoch {attempt.epoch}: {printable(attempt.problem)}"
        for attempt in shown.epochs
        if attempt.problem
    ]
    parts: list[RenderableType] = [table, Text("")] if shown.epochs else []
    parts += map(Text, notes)
    for attempt in shown.epochs:
        if attempt.details is not None:
            parts += _details(attempt, attempt.details)
    return Group(*parts)


def _details(attempt: Attempt, details: AttemptDetails) -> Iterator[RenderableType]:
    yield Text("")
    yield fact_table(
        ("run", f"{attempt.run_id}"),
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
        place = segment.path if segment.is_file else "in the manifest"
        segments.add_row(f"{segment.rows:,}", byte_count(segment.bytes), place)
    yield from (Text("\nSchema"), columns, Text("\nSegments"), segments)
    yield from sample_screen(details.sample)


def sample_screen(rows: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """Yield each row as a block with a line for each column.

    :param rows: values by column, from `json_value`.
    """
    if rows:
        yield Text("\nSome rows")
    for number, row in enumerate(rows, 1):
        yield Text(f"row {number}")
        yield fact_table(*((f"  {printable(name)}", _cell(value)) for name, value in row.items()))


def _cell(value: Any) -> str:
    """Return a value as text, cut after 80 characters."""
    text = printable(value if isinstance(value, str) else msgspec.json.encode(value).decode())
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1] + "…"


def _table(*names: str) -> Table:
    """Return a table with these columns. Only the column `segment`, which has paths, breaks lines."""
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
