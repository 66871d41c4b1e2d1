"""Keeps refused rows with the reasons in `refused/<epoch>/`. They are never trimmed.

Tasks refuse rows by the target's check before the epoch is published; the manifest names the segments of
these rows. A server refuses rows in the flush. Both are durable in `refused/` before the ledger row moves
over their epoch. A flusher that writes the epoch again skips them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from state_backends import StateBackend
from wal_sink.model import paths
from wal_sink.model.manifest import Manifest
from wal_sink.wal.segment import check_segment, missing_segment
from wal_sink.wal.store import LogStore


class RefusedRows(NamedTuple):
    """A file of refused rows."""

    epoch: int
    rows: int
    path: str
    target: str
    """Name of the target whose server refused the row; empty for rows that the tasks refused."""


def keep_refused(store: LogStore, manifest: Manifest) -> None:
    """Copy the segments of rows that the tasks refused to `refused/`. Idempotent.

    :raises MissingSegment: a segment is gone.
    :raises CorruptLog: a segment is not what its task wrote.
    """
    if not manifest.refused:
        return
    present = set(store.list(paths.refused_folder(manifest.epoch)))
    for segment in manifest.refused:
        name = segment.path.rpartition("/")[2]
        path = paths.REFUSED.path(paths.RefusedName(manifest.epoch, segment.rows, name))
        if path in present:
            continue
        try:
            check_segment(store.backend, segment)
            store.backend.copy(segment.path, path)
        except FileNotFoundError as error:
            raise missing_segment(store.url, segment) from error
        except FileExistsError:
            continue  # another flusher was faster


def keep_row(store: LogStore, epoch: int, target: str, us: int, row: pa.RecordBatch) -> None:
    """Write a row that the server of a target refused to `refused/`. Idempotent.

    :param us: write timestamp of the row by its manifest, microseconds since 1970.
    :param row: one row, as `segment.with_reasons` makes it.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, row.schema) as writer:
        writer.write_batch(row)
    path = paths.REFUSED_ROW.path(paths.RefusedRowName(epoch, target, us))
    store.create(path, sink.getvalue().to_pybytes())


def refused_us(store: LogStore, target: str, after: int) -> dict[int, tuple[int, ...]]:
    """Return the write timestamps of the rows that a target's server refused, ascending, by epoch.

    :param after: only epochs after this one are returned.
    """
    refused: dict[int, list[int]] = {}
    for path in store.list(paths.REFUSED.folder):
        name = paths.REFUSED_ROW.parse(path)
        if name is not None and name.target == target and name.epoch > after:
            refused.setdefault(name.epoch, []).append(name.us)
    return {epoch: tuple(sorted(rows)) for epoch, rows in refused.items()}


def refused_files(store: LogStore) -> list[RefusedRows]:
    """List the files of refused rows, ascending by epoch."""
    files = []
    for path in store.list(paths.REFUSED.folder):
        row, rows = paths.REFUSED_ROW.parse(path), paths.REFUSED.parse(path)
        if rows is not None:
            files.append(
                RefusedRows(rows.epoch, rows.rows, path, row.target if row is not None else "")
            )
    return files


def read_refused(backend: StateBackend, path: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file of `refused/`, with the columns of `segment.with_reasons`."""
    reader = pa.ipc.open_file(pa.BufferReader(backend.read(path)))
    for index in range(reader.num_record_batches):
        yield reader.get_batch(index)
