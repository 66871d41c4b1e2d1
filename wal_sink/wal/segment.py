"""Writes, reads and checks the files of rows in the log: segments, and refused rows with the reasons.

A segment has the rows of one task and one epoch, as a compressed Arrow IPC file. A small segment has no
file: the manifest contains its bytes. Size and digest are recorded as for a file (rule `segments`).

A file of refused rows has each row as a struct in one column, and the reason in further columns. So no column
of the user can clash with the columns of the reason. The values keep their types, so the rows can be written
again.

Tasks refuse rows by the target's check before the epoch is published; the manifest names the segments of
these rows. A server refuses rows in the flush. All refused rows are durable in `refused/<epoch>/` before the
ledger row moves over their epoch, and are never trimmed. A flusher that writes the epoch again skips these
rows.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import struct
from collections.abc import Callable, Iterator
from typing import BinaryIO, Literal, NamedTuple

import pyarrow as pa

from wal_sink import errors
from wal_sink.errors import CorruptLog
from wal_sink.model import paths
from wal_sink.model.codec import digest
from wal_sink.model.manifest import Manifest, SegmentRef
from wal_sink.wal.store import LogStore, create_object

Compression = Literal["lz4", "zstd", "none"]

_READ_WHOLE = 4 * 1024 * 1024
"""Most bytes of a segment that one request reads whole. For a small segment, a second request would cost more
than the bytes."""

_WITHOUT_THREADS = pa.ipc.IpcReadOptions(use_threads=False)
"""Passing the columns of a batch to Arrow's threads costs more CPU than decompressing the columns."""


class SegmentWriter:
    """Writes the segment of one task, which is valid after `close`. Memory: one batch, and `inline_bytes`.

    :param path: path of the segment, below the log's folder.
    :param open_file: opens the file at `path`; called for a segment of more than `inline_bytes` only.
    :param inline_bytes: a segment of at most this number of bytes is returned by `close`, and has no file.
    """

    def __init__(
        self,
        path: str,
        open_file: Callable[[], BinaryIO],
        compression: Compression,
        inline_bytes: int = 0,
    ) -> None:
        self._path = path
        self._compression = None if compression == "none" else compression
        self._output = _SegmentOutput(open_file, inline_bytes)
        self._writer: pa.ipc.RecordBatchFileWriter | None = None
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch."""
        if self._writer is None:
            options = pa.ipc.IpcWriteOptions(compression=self._compression, use_threads=False)
            output = pa.PythonFile(self._output, mode="w")
            self._writer = pa.ipc.new_file(output, batch.schema, options=options)
        self._writer.write_batch(batch)
        self._rows += batch.num_rows

    def close(self) -> tuple[SegmentRef, ...]:
        """Write the footer. Return the segment, or nothing if no batch was written."""
        if self._writer is None:
            return ()
        self._writer.close()
        output = self._output
        ref = SegmentRef(
            path=self._path,
            rows=self._rows,
            bytes=output.size,
            digest=output.sha256.hexdigest(),
            data=None if output.held is None else bytes(output.held),
        )
        return (ref,)


class _SegmentOutput:
    """Digests what pyarrow writes. Holds up to `most` bytes in memory; writes a larger segment to a file.

    The output must not refer to its `SegmentWriter`. The garbage collector does not see that pyarrow's writer
    holds the output, so such a cycle of references would stay in memory as long as the Python worker runs.
    """

    closed = False

    def __init__(self, open_file: Callable[[], BinaryIO], most: int) -> None:
        self.sha256 = hashlib.sha256()
        self.size = 0
        self.held: bytearray | None = bytearray()
        """All bytes so far; None after the bytes were written to the file."""
        self._open_file = open_file
        self._most = most
        self._file: BinaryIO | None = None

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        self.size += len(data)
        if self._file is None:
            assert self.held is not None
            if self.size <= self._most:
                self.held += data
                return len(data)
            self._file = self._open_file()
            self._file.write(self.held)
            self.held = None
        self._file.write(data)
        return len(data)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """Do nothing, since the store makes the file durable when the file is closed."""

    def close(self) -> None:
        """Do nothing, since the caller that provides `open_file` closes the file."""


def read_segment(
    store: LogStore, ref: SegmentRef, start: int = 0, stop: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield a segment's batches after size and digest of the whole segment were verified.

    A large file is read twice, so that no row of a damaged segment is ever sent. Memory: one batch, or a
    segment of 4 MiB.

    :param start: the first row, counted from 0. Batches before this row are decoded and dropped.
    :param stop: the row after the last one; None for all rows.
    :raises MissingSegment: the segment is gone. Raised before the first batch.
    :raises CorruptLog: the segment is not what its task wrote, is not an Arrow file, or has another number of
        rows.
    """
    stop = ref.rows if stop is None else stop
    with _verified(store, ref) as source:
        with _decoding(store, ref, source):
            reader = pa.ipc.open_file(source, options=_WITHOUT_THREADS)
        rows = 0
        for index in range(reader.num_record_batches):
            with _decoding(store, ref, source):
                batch = reader.get_batch(index)
            first, last = max(start - rows, 0), min(stop - rows, batch.num_rows)
            if first < last or (first, last) == (0, batch.num_rows):
                yield batch.slice(first, last - first)
            rows += batch.num_rows
            if rows >= stop < ref.rows:
                return  # the number of rows is checked by the reader of the last row
    if rows != ref.rows:
        raise CorruptLog(
            f"Segment {store.url}/{ref.path} has {rows} rows, and its manifest says {ref.rows}.",
            errors.restore_or_give_up(paths.segment_epoch(ref.path)),
        )


def check_segment(store: LogStore, ref: SegmentRef) -> None:
    """Verify size and digest of a segment.

    :raises MissingSegment: the segment is gone.
    :raises CorruptLog: the segment is not what its task wrote.
    """
    with _verified(store, ref):
        pass


@contextlib.contextmanager
def _decoding(store: LogStore, ref: SegmentRef, source: pa.NativeFile) -> Iterator[None]:
    """Raise `CorruptLog` if pyarrow cannot read a segment that matches its manifest."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        # pyarrow raises OSError, too, if it cannot decompress bytes in memory.
        of_the_store = isinstance(error, OSError) and not isinstance(source, pa.BufferReader)
        if of_the_store or isinstance(error, MemoryError):
            raise
        raise CorruptLog(
            f"Segment {store.url}/{ref.path} matches its manifest, but pyarrow {pa.__version__} cannot"
            f" read it: {error}",
            "If a newer version of wal_sink or of pyarrow wrote the segment, flush with that version."
            f" {errors.restore_or_give_up(paths.segment_epoch(ref.path))}",
        ) from error


@contextlib.contextmanager
def _verified(store: LogStore, ref: SegmentRef) -> Iterator[pa.NativeFile]:
    """Open a segment after its size and digest were verified.

    :raises MissingSegment, CorruptLog: as `check_segment`.
    """
    try:
        if ref.bytes <= _READ_WHOLE or ref.data is not None:
            data = store.read(ref.path) if ref.data is None else ref.data
            _refuse_changed(len(data), digest(data), ref, store.url)
            yield pa.BufferReader(data)
            return
        with contextlib.closing(store.open_input(ref.path)) as source:
            sha256 = hashlib.file_digest(source, "sha256")  # type: ignore[arg-type]
            size = source.seek(0, io.SEEK_END)
            _refuse_changed(size, sha256.hexdigest(), ref, store.url)
            source.seek(0)
            yield pa.PythonFile(source, mode="r")
    except FileNotFoundError as error:
        raise missing_segment(store.url, ref) from error


def missing_segment(log: str, ref: SegmentRef) -> errors.MissingSegment:
    """Return the error of a segment that is gone."""
    epoch = paths.segment_epoch(ref.path)
    return errors.MissingSegment(
        f"Segment {log}/{ref.path} of epoch {epoch} is gone.", errors.restore_or_give_up(epoch)
    )


def _refuse_changed(size: int, sha256: str, ref: SegmentRef, log: str) -> None:
    if (size, sha256) != (ref.bytes, ref.digest):
        raise CorruptLog(
            f"Segment {log}/{ref.path} {'' if ref.is_file else 'in its manifest '}has {size} bytes with"
            f" SHA-256 {sha256}. Its manifest says {ref.bytes} bytes with {ref.digest}.",
            errors.restore_or_give_up(paths.segment_epoch(ref.path)),
        )


ROW = "row"
TEXTS = ("kind", "target", "column", "reason", "remedy")
"""Columns of a refused row beside the row itself. `kind`: `InvalidRow` if a task refused the row,
`TargetRefused` if a server did. `target`: the target that refused the row; empty for a single target.
`column`: the column that causes the refusal, or empty. `reason`: the problem. `remedy`: what the reader does
next."""


def with_reasons(rows: pa.RecordBatch, texts: tuple[str, ...]) -> pa.RecordBatch:
    """Return refused rows as structs in the column `ROW`, beside a column for each of `TEXTS`.

    :param texts: the value of each column of `TEXTS`, which is the same in all rows.
    """
    structs = pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema))
    reasons = [_repeated(text, rows.num_rows) for text in texts]
    return pa.RecordBatch.from_arrays([structs, *reasons], names=[ROW, *TEXTS])


def _repeated(text: str, rows: int) -> pa.Array:
    """Return a column that repeats a text. The code uses buffers, since `pa.scalar` would import pandas."""
    data = text.encode()
    offsets = pa.py_buffer(struct.pack("=ii", 0, len(data)))
    return pa.repeat(
        pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(data)])[0], rows
    )


class RefusedRows(NamedTuple):
    """A file of refused rows."""

    epoch: int
    rows: int
    path: str
    target: str
    """Name of the target whose server refused the row; empty for rows that the tasks refused."""


def keep_refused(store: LogStore, manifest: Manifest) -> None:
    """Copy into `refused/` the segments of the rows that the tasks refused. Idempotent.

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
            check_segment(store, segment)
            store.copy(segment.path, path)
        except FileNotFoundError as error:
            raise missing_segment(store.url, segment) from error
        except FileExistsError:
            continue  # another flusher was faster


def keep_row(store: LogStore, epoch: int, target: str, us: int, row: pa.RecordBatch) -> None:
    """Keep a row that a target's server refused, in a file below `refused/`. Idempotent.

    :param us: the row's write timestamp, which its manifest gives it, in microseconds since 1970.
    :param row: one row, as `segment.with_reasons` makes it.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, row.schema) as writer:
        writer.write_batch(row)
    path = paths.REFUSED_ROW.path(paths.RefusedRowName(epoch, target, us))
    create_object(store, path, sink.getvalue().to_pybytes())


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


def read_refused(store: LogStore, path: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file of `refused/`, with the columns of `segment.with_reasons`."""
    reader = pa.ipc.open_file(pa.BufferReader(store.read(path)))
    for index in range(reader.num_record_batches):
        yield reader.get_batch(index)
