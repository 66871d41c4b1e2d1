"""`quarantine`: lists the rows that a target refused, and writes them to a file (rule 24)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from wal_sink.admin.query import Query
from wal_sink.admin.row_json import json_value
from wal_sink.errors import OptionError
from wal_sink.wal.quarantine import Entry, entries, read_entry
from wal_sink.wal.refused import ROW, TEXTS

_LINES = (".jsonl", ".ndjson", ".json")
_PARQUET = ".parquet"


class RefusedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one epoch that are refused for one reason."""

    epoch: int
    rows: int
    kind: str
    """The error: `InvalidRow`, by a task; `TargetRefused`, in the flush."""
    refused_by: str
    """Name of the one of several targets that refuses them; empty for the only one."""
    column: str
    """Empty where no single one is to blame."""
    reason: str
    remedy: str


class Quarantined(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `quarantine`."""

    query_id: str
    target: str
    log: str
    rows: int
    groups: tuple[RefusedGroup, ...]


class RefusedRow(NamedTuple):
    """One row in quarantine."""

    entry: Entry
    number: int
    """In its entry, from 0."""
    texts: tuple[str, ...]
    """As `wal.refused.TEXTS` names them."""
    row: pa.Scalar


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `quarantine --export`."""

    query_id: str
    file: str
    rows: int


def list_quarantine(query: Query) -> Quarantined:
    """Group what is in quarantine by epoch and reason.

    :raises CorruptLog: an entry cannot be read.
    """
    groups: dict[tuple[int, tuple[str, ...]], int] = {}
    for row in refused_rows(query):
        key = row.entry.epoch, row.texts
        groups[key] = groups.get(key, 0) + 1
    return Quarantined(
        query_id=query.query_id,
        target=query.log.target,
        log=query.log.url,
        rows=sum(groups.values()),
        groups=tuple(
            RefusedGroup(
                epoch=epoch,
                rows=rows,
                kind=texts[0],
                refused_by=texts[1],
                column=texts[2],
                reason=texts[3],
                remedy=texts[4],
            )
            for (epoch, texts), rows in groups.items()
        ),
    )


def refused_rows(query: Query) -> Iterator[RefusedRow]:
    """Yield the rows in quarantine, in the order of their write timestamps; memory: one entry."""
    for entry in entries(query.log):
        found = read_entry(query.log, entry)
        texts = [found.column(name).to_pylist() for name in TEXTS]
        rows = found.column(ROW)
        for number in entry.left:
            yield RefusedRow(entry, number, tuple(text[number] for text in texts), rows[number])


def export(queries: Sequence[Query], file: str) -> Exported:
    """Write the rows in quarantine to a file, JSON lines or Parquet by its suffix; they stay in quarantine.

    :param queries: one query, as each of its targets sees it.
    :raises OptionError: the suffix is another one, or the file exists or cannot be written.
    """
    path = Path(file)
    if path.suffix.lower() not in (*_LINES, _PARQUET):
        raise OptionError(
            f"--export {file} is no file of a known kind.",
            f"End its name with {_PARQUET} for Parquet, or with {_LINES[0]} for JSON lines.",
        )
    lines = [_line(query, row) for query in queries for row in refused_rows(query)]
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with contextlib.ExitStack() as stack:
            stack.callback(part.unlink, missing_ok=True)
            if path.suffix.lower() == _PARQUET:
                pq.write_table(_table(lines), part)
            else:
                encode = msgspec.json.Encoder().encode_lines
                part.write_bytes(encode(lines))
            os.link(part, path)  # atomic, and replaces nothing
    except FileExistsError:
        raise OptionError(f"--export {file} exists.", "Name a file that does not.") from None
    except OSError as error:
        raise OptionError(
            f"--export {file} cannot be written: {error.strerror or error}.",
            "Name a file in a folder that is there, with room, to which this user may write.",
        ) from error
    return Exported(query_id=queries[0].query_id, file=str(path.absolute()), rows=len(lines))


def _line(query: Query, row: RefusedRow) -> dict[str, Any]:
    kind, refused_by, column, reason, remedy = row.texts
    return {
        "epoch": row.entry.epoch,
        "target": query.log.target,
        "timestamp_us": row.entry.first_us + row.number,
        "kind": kind,
        "refused_by": refused_by,
        "column": column,
        "reason": reason,
        "remedy": remedy,
        "row": json_value(row.row),
    }


_SCHEMA = pa.schema(
    [
        ("epoch", pa.int64()),
        ("target", pa.string()),
        ("timestamp_us", pa.int64()),
        *((name, pa.string()) for name in ("kind", "refused_by", "column", "reason", "remedy")),
        ("row", pa.string()),
    ]
)


def _table(lines: Sequence[dict[str, Any]]) -> pa.Table:
    """Return the lines as columns; the row is JSON, since those of different epochs may differ in type."""
    rows = [line | {"row": msgspec.json.encode(line["row"]).decode()} for line in lines]
    return pa.Table.from_pylist(rows, _SCHEMA)
