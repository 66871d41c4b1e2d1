"""Writes, reads and checks segments: the rows of one task for one epoch, as a compressed Arrow IPC file.

A small segment has no file of its own: its manifest holds its bytes, under the same size and digest (rule
4).

A segment of refused rows is an Arrow file like any other, with the reason of each row. The row is one of
its columns, a struct, so no column of the user's can clash with ours; and it keeps its types, so that it can
be sent again.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import struct
from collections.abc import Iterator
from typing import BinaryIO, Literal, Protocol

import pyarrow as pa

from state_backends import StateBackend
from wal_sink import errors
from wal_sink.errors import CorruptLog
from wal_sink.model import paths
from wal_sink.model.codec import digest
from wal_sink.model.manifest import SegmentRef

Compression = Literal["lz4", "zstd", "none"]

_AT_ONCE = 4 * 1024 * 1024
"""Most bytes of a segment that is read whole: small ones are many, and a read costs more than its bytes."""

_ALONE = pa.ipc.IpcReadOptions(use_threads=False)
"""To hand the columns of a batch to Arrow's threads takes more of the processors than to decompress them."""


class Output(Protocol):
    """Where a segment is written.

    It must not lead back to its `SegmentWriter`: that pyarrow holds it is hidden from the garbage collector.
    """

    def write(self, data: bytes, /) -> object:
        """Append bytes."""


class SegmentWriter:
    """Writes batches to an open output; counts the rows, and digests the bytes.

    Memory: one batch. The file is valid after `close`.
    """

    def __init__(self, output: Output, schema: pa.Schema, compression: Compression) -> None:
        self._tee = _DigestingFile(output)
        codec = None if compression == "none" else compression
        self._writer = pa.ipc.new_file(
            pa.PythonFile(self._tee, mode="w"),
            schema,
            options=pa.ipc.IpcWriteOptions(compression=codec, use_threads=False),
        )
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch."""
        self._writer.write_batch(batch)
        self._rows += batch.num_rows

    def close(self, path: str) -> SegmentRef:
        """Write the footer; return what a manifest says about the segment at `path`."""
        self._writer.close()
        return SegmentRef(
            path=path, rows=self._rows, bytes=self._tee.size, digest=self._tee.sha256.hexdigest()
        )


def read_segment(
    backend: StateBackend, ref: SegmentRef, start: int = 0, stop: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield a segment's batches, after its size and digest have been verified over the whole file.

    A large file is read twice, so that no row of a damaged segment is ever sent. Memory: one batch, or a
    segment of 4 MiB.

    :param start: the first row wanted, from 0. The batches before it are decoded and dropped.
    :param stop: the row after the last one wanted; None: up to the end.
    :raises MissingSegment: the segment is gone; before the first batch.
    :raises CorruptLog: it is not what its task wrote, not an Arrow file, or has another number of rows.
    """
    stop = ref.rows if stop is None else stop
    with _verified(backend, ref) as source:
        with _decoding(backend, ref, source):
            reader = pa.ipc.open_file(source, options=_ALONE)
        rows = 0
        for index in range(reader.num_record_batches):
            with _decoding(backend, ref, source):
                batch = reader.get_batch(index)
            first, last = max(start - rows, 0), min(stop - rows, batch.num_rows)
            if first < last or (first, last) == (0, batch.num_rows):
                yield batch.slice(first, last - first)
            rows += batch.num_rows
            if rows >= stop < ref.rows:
                return  # only a reader of the last row checks their number
    if rows != ref.rows:
        raise CorruptLog(
            f"Segment {backend.url}/{ref.path} holds {rows} rows, its manifest says {ref.rows}",
            errors.restore_or_give_up(paths.segment_epoch(ref.path)),
        )


def check_segment(backend: StateBackend, ref: SegmentRef) -> None:
    """Check that a segment is what its task wrote, to the byte.

    :raises MissingSegment: the segment is gone.
    :raises CorruptLog: it is something else.
    """
    with _verified(backend, ref):
        pass


@contextlib.contextmanager
def _decoding(backend: StateBackend, ref: SegmentRef, source: pa.NativeFile) -> Iterator[None]:
    """Raise `CorruptLog` where pyarrow cannot read a segment, although it has the digest of its manifest."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        # Of what is in memory, pyarrow raises OSError where it cannot be decompressed.
        of_the_store = isinstance(error, OSError) and not isinstance(source, pa.BufferReader)
        if of_the_store or isinstance(error, MemoryError):
            raise
        raise CorruptLog(
            f"Segment {backend.url}/{ref.path} is what its manifest says, and pyarrow {pa.__version__} cannot"
            f" read it: {error}",
            "If a newer version of wal_sink or of pyarrow wrote it, flush with that one."
            f" {errors.restore_or_give_up(paths.segment_epoch(ref.path))}",
        ) from error


@contextlib.contextmanager
def _verified(backend: StateBackend, ref: SegmentRef) -> Iterator[pa.NativeFile]:
    """Open a segment that is what its task wrote: of its size, and with its digest.

    :raises MissingSegment, CorruptLog: as `check_segment`.
    """
    try:
        if ref.bytes <= _AT_ONCE or ref.data is not None:
            data = backend.read(ref.path) if ref.data is None else ref.data
            _refuse_other((len(data), digest(data)), ref, backend.url)
            yield pa.BufferReader(data)
            return
        with contextlib.closing(backend.open_input(ref.path)) as source:
            _refuse_other(_measured(source), ref, backend.url)
            source.seek(0)
            yield pa.PythonFile(source, mode="r")
    except FileNotFoundError as error:
        raise missing_segment(backend.url, ref) from error


def missing_segment(log: str, ref: SegmentRef) -> errors.MissingSegment:
    """Return the error of a segment that is gone."""
    epoch = paths.segment_epoch(ref.path)
    return errors.MissingSegment(
        f"Segment {log}/{ref.path} of epoch {epoch} is gone.", errors.restore_or_give_up(epoch)
    )


def _measured(source: BinaryIO) -> tuple[int, str]:
    """Read an open file to its end; return its size in bytes and its SHA-256 in hexadecimal digits."""
    sha256 = hashlib.file_digest(source, "sha256")  # type: ignore[arg-type]
    return source.seek(0, io.SEEK_END), sha256.hexdigest()


def _refuse_other(actual: tuple[int, str], ref: SegmentRef, log: str) -> None:
    size, sha256 = actual
    if (size, sha256) != (ref.bytes, ref.digest):
        raise CorruptLog(
            f"Segment {log}/{ref.path} {'' if ref.is_file else 'in its manifest '}has {size} bytes with"
            f" SHA-256 {sha256}; its manifest says {ref.bytes} bytes with {ref.digest}",
            errors.restore_or_give_up(paths.segment_epoch(ref.path)),
        )


class _DigestingFile:
    """The part of a file's interface that pyarrow writes to."""

    closed = False

    def __init__(self, output: Output) -> None:
        self._output = output
        self.sha256 = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        self.size += len(data)
        self._output.write(data)
        return len(data)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """Do nothing: the state backend makes the file durable when it is closed."""

    def close(self) -> None:
        """Do nothing: the caller who opened the output closes it."""


ROW = "row"
TEXTS = ("kind", "target", "column", "reason", "remedy")
"""The kind of the error, `InvalidRow` from a task or `TargetRefused` from the flush; which of several targets
refuses, else empty; the column, empty where none alone is to blame; what is wrong; and what to do."""


def with_reasons(rows: pa.RecordBatch, texts: tuple[str, ...]) -> pa.RecordBatch:
    """Return rows with why they are refused, as a segment holds them.

    :param texts: one for each of `TEXTS`, the same for all rows.
    """
    structs = pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema))
    reasons = [_repeated(text, rows.num_rows) for text in texts]
    return pa.RecordBatch.from_arrays([structs, *reasons], names=[ROW, *TEXTS])


def _repeated(text: str, rows: int) -> pa.Array:
    """Return a column of one text; made of buffers, as `pa.scalar` would load pandas in each new worker."""
    data = text.encode()
    offsets = pa.py_buffer(struct.pack("=ii", 0, len(data)))
    return pa.repeat(
        pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(data)])[0], rows
    )
