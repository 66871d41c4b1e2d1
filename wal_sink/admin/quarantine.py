"""`quarantine`: lists the refused rows by epoch and reason, or exports them. It reads only the log."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from wal_sink.admin.query import Query
from wal_sink.errors import CorruptLog, OptionError
from wal_sink.wal.location import store_errors
from wal_sink.wal.segment import ROW, TEXTS, read_refused, refused_files

_LINES, _PARQUET = ".jsonl", ".parquet"


class RefusedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one epoch that were refused for one reason."""

    epoch: int
    rows: int
    kind: str
    """`InvalidRow`: a task refused the rows. `TargetRefused`: the target refused them in the flush."""
    refused_by: str
    """Name of the target; empty if a task refused the rows, and the query has one target."""
    column: str
    """The column with the invalid value; empty if it is not a single column."""
    reason: str
    remedy: str


class QuarantineList(msgspec.Struct, frozen=True, kw_only=True):
    """The refused rows of a query, in groups. `wal-sink quarantine --json` prints this class."""

    query_id: str
    log: str
    rows: int
    groups: tuple[RefusedGroup, ...]


class QuarantineExport(msgspec.Struct, frozen=True, kw_only=True):
    """What was exported. `wal-sink quarantine --export FILE --json` prints this class."""

    query_id: str
    file: str
    rows: int


_REASON = ("kind", "refused_by", "column", "reason", "remedy")
"""The text fields of `RefusedGroup`, in the order of `wal.segment.TEXTS`."""

_SCHEMA = pa.schema([("epoch", pa.int64()), *((name, pa.string()) for name in (*_REASON, "row"))])


@store_errors()
def list_quarantine(query: Query) -> QuarantineList:
    """Count the refused rows of each epoch and reason."""
    groups = Counter((epoch, texts) for epoch, texts, _ in _refused(query))
    return QuarantineList(
        query_id=query.query_id,
        log=query.store.url,
        rows=groups.total(),
        groups=tuple(
            RefusedGroup(epoch=epoch, rows=rows, **dict(zip(_REASON, texts, strict=True)))
            for (epoch, texts), rows in groups.items()
        ),
    )


def _refused(query: Query) -> Iterator[tuple[int, tuple[str, ...], pa.Scalar]]:
    """Yield epoch, texts and values of each refused row, with one file at a time in memory.

    :raises CorruptLog: a file of refused rows cannot be read.
    """
    for file in refused_files(query.store):
        try:
            for batch in read_refused(query.store, file.path):
                texts = zip(*(batch.column(name).to_pylist() for name in TEXTS), strict=True)
                rows = batch.column(batch.schema.names.index(ROW))
                yield from ((file.epoch, text, row) for text, row in zip(texts, rows, strict=True))
        except (pa.ArrowException, KeyError, ValueError) as error:
            raise CorruptLog(
                f"{query.store.url}/{file.path} cannot be read: {error}",
                "Restore the file from a copy of the log, or move it out of the log to list the other files.",
            ) from error


@store_errors("The file or the log")
def export(query: Query, file: str) -> QuarantineExport:
    """Copy the refused rows to a new file: Parquet or JSON lines, by the suffix.

    :raises OptionError: the suffix is unknown, or the file exists or cannot be written.
    """
    path = Path(file)
    if path.suffix.lower() not in (_LINES, _PARQUET):
        raise OptionError(
            f"The name of the file {file} for --export has no known suffix.",
            f"End the name with {_PARQUET} for Parquet, or with {_LINES} for JSON lines.",
        )
    lines = [
        {"epoch": epoch, **dict(zip(_REASON, texts, strict=True)), "row": json_value(row)}
        for epoch, texts, row in _refused(query)
    ]
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if path.suffix.lower() == _PARQUET:
            # The column `row` has JSON, since rows of different epochs may have different types.
            texts = [line | {"row": msgspec.json.encode(line["row"]).decode()} for line in lines]
            pq.write_table(pa.Table.from_pylist(texts, _SCHEMA), part)
        else:
            part.write_bytes(msgspec.json.Encoder().encode_lines(lines))
        os.link(part, path)  # atomic, and never replaces a file
    except FileExistsError:
        raise OptionError(
            f"The file {file} for --export exists.", "Name a file that does not exist."
        ) from None
    except OSError as error:
        raise OptionError(
            f"The file {file} for --export cannot be written: {error.strerror or error}.",
            "Name a file in an existing folder with free space, in which this user may write.",
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return QuarantineExport(query_id=query.query_id, file=str(path.absolute()), rows=len(lines))


def json_value(value: pa.Scalar) -> Any:
    r"""Return a value that `msgspec.json.encode` accepts; None for null.

    A byte that is not UTF-8 becomes text such as `\xff`. A date outside of Python's range becomes Arrow's
    text for the date. A map becomes a list of pairs, since its keys may have any type.
    """
    if not value.is_valid:
        return None
    kind = value.type
    if pt.is_struct(kind):
        return {field.name: json_value(value[field.name]) for field in kind}
    if pt.is_map(kind):
        return [[json_value(entry["key"]), json_value(entry["value"])] for entry in value.values]
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return [json_value(item) for item in value.values]
    return _of_scalar(value)


def _of_scalar(value: pa.Scalar) -> Any:
    if pt.is_string(value.type) or pt.is_large_string(value.type):
        return bytes(value.as_buffer()).decode("utf-8", errors="backslashreplace")
    try:
        return value.as_py()
    except (ValueError, OverflowError):  # a date or time outside of Python's range
        return str(value.cast(pa.string()).as_py())
