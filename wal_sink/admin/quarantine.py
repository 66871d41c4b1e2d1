"""`quarantine`: lists the rows of `refused/` by epoch and reason, or exports them. Reads the log alone.

Nothing sends them again: an operator repairs them, and writes them by a query of their own.
"""

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
from wal_sink.wal.refused import listed, read_refused
from wal_sink.wal.segment import ROW, TEXTS

_LINES, _PARQUET = ".jsonl", ".parquet"


class RefusedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one epoch that are refused for one reason."""

    epoch: int
    rows: int
    kind: str
    """The error: `InvalidRow`, by a task; `TargetRefused`, in the flush."""
    refused_by: str
    """Name of the target that refuses them; empty for the only one's check in the tasks."""
    column: str
    """Empty where no single one is to blame."""
    reason: str
    remedy: str


class Quarantined(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `quarantine`."""

    query_id: str
    log: str
    rows: int
    groups: tuple[RefusedGroup, ...]


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `quarantine --export`."""

    query_id: str
    file: str
    rows: int


_REASON = ("kind", "refused_by", "column", "reason", "remedy")
"""What the documents call the texts of a row, in the order of `wal.segment.TEXTS`."""

_SCHEMA = pa.schema([("epoch", pa.int64()), *((name, pa.string()) for name in (*_REASON, "row"))])


@store_errors()
def list_quarantine(query: Query) -> Quarantined:
    """Group refused rows by epoch and reason.

    :raises CorruptLog: a file cannot be read.
    """
    groups = Counter((epoch, texts) for epoch, texts, _ in _refused(query))
    return Quarantined(
        query_id=query.query_id,
        log=query.store.url,
        rows=groups.total(),
        groups=tuple(
            RefusedGroup(epoch=epoch, rows=rows, **dict(zip(_REASON, texts, strict=True)))
            for (epoch, texts), rows in groups.items()
        ),
    )


def _refused(query: Query) -> Iterator[tuple[int, tuple[str, ...], pa.Scalar]]:
    """Yield refused rows by epoch, with their reasons. Memory: one file.

    :raises CorruptLog: a file cannot be read.
    """
    for file in listed(query.store):
        try:
            for batch in read_refused(query.store.backend, file.path):
                texts = zip(*(batch.column(name).to_pylist() for name in TEXTS), strict=True)
                rows = batch.column(batch.schema.names.index(ROW))
                yield from ((file.epoch, text, row) for text, row in zip(texts, rows, strict=True))
        except (pa.ArrowException, KeyError, ValueError) as error:
            raise CorruptLog(
                f"{query.store.url_of(file.path)} cannot be read: {error}",
                "Restore the file from a copy of the log, or move it away to see the others.",
            ) from error


@store_errors("The file or the log")
def export(query: Query, file: str) -> Exported:
    """Write refused rows to a file, JSON lines or Parquet by its suffix; they stay in the log.

    :raises OptionError: the suffix is another one, or the file exists or cannot be written.
    """
    path = Path(file)
    if path.suffix.lower() not in (_LINES, _PARQUET):
        raise OptionError(
            f"--export {file} is not a file of a known kind.",
            f"End its name with {_PARQUET} for Parquet, or with {_LINES} for JSON lines.",
        )
    lines = [
        {"epoch": epoch, **dict(zip(_REASON, texts, strict=True)), "row": json_value(row)}
        for epoch, texts, row in _refused(query)
    ]
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if path.suffix.lower() == _PARQUET:
            # The row is JSON: those of different epochs may differ in type.
            texts = [line | {"row": msgspec.json.encode(line["row"]).decode()} for line in lines]
            pq.write_table(pa.Table.from_pylist(texts, _SCHEMA), part)
        else:
            part.write_bytes(msgspec.json.Encoder().encode_lines(lines))
        os.link(part, path)  # atomic, and replaces nothing
    except FileExistsError:
        raise OptionError(f"--export {file} exists.", "Name a file that does not.") from None
    except OSError as error:
        raise OptionError(
            f"--export {file} cannot be written: {error.strerror or error}.",
            "Name a file in an existing folder with free space, to which this user may write.",
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return Exported(query_id=query.query_id, file=str(path.absolute()), rows=len(lines))


def json_value(value: pa.Scalar) -> Any:
    r"""Return what `msgspec.json.encode` writes of a value; None for null.

    Bytes become base64 and decimals texts. A text that is not UTF-8 keeps its bytes, as `\xff`; a date that
    Python does not have is the text that Arrow makes of it. A map is a list of pairs, as its keys may be of
    any type.
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
    except (ValueError, OverflowError):  # a date or time that Python does not have
        return str(value.cast(pa.string()).as_py())
