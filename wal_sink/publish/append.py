"""Appends a task's rows to the log as segments, checked: step 2 of `docs/protocol/README.md`.

Afterwards a large segment is durable, and nothing refers to it (rule `segments`); a small one is in
the task's report alone. If this attempt loses, or the epoch is run again, no manifest will name
them; only the publisher makes them part of an epoch.

`split_invalid` splits a batch into the rows that the target accepts, and the rows that its check refuses,
with their reasons. A check raises at the first rule that a row breaks, and says which rows break the same
one. They are taken out, and the check runs again: once for each broken rule, not for each row. Kernels of
Arrow do that; no row becomes a Python object. Where a check does not say which rows, the batch is halved
down to one row.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, Literal, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from state_backends import StateBackend
from wal_sink.arrow_batches import coalesced, in_utc
from wal_sink.errors import InvalidRow
from wal_sink.model import paths
from wal_sink.model.manifest import Appended, SegmentRef, Task
from wal_sink.model.paths import SegmentName
from wal_sink.targets.value_checks import refuse_invalid_utf8
from wal_sink.wal.location import log_errors
from wal_sink.wal.segment import Compression, SegmentWriter, with_reasons
from wal_sink.wal.states import newest_number
from wal_sink.wal.store import LogStore

Check = Callable[[pa.RecordBatch], pa.RecordBatch]


class Refused(NamedTuple):
    """Rows that break one rule."""

    rows: pa.RecordBatch
    """As the DataFrame has them."""
    error: InvalidRow
    """Of the first of them."""


class SplitRows(NamedTuple):
    """A batch in two parts, each in the batch's order."""

    taken: tuple[pa.RecordBatch, ...]
    """As the check returns them."""
    refused: tuple[Refused, ...]


def split_invalid(batch: pa.RecordBatch, check: Check) -> SplitRows:
    """Let `check` refuse rows, each for the first rule that it breaks.

    :param check: returns a batch as the log holds it, or raises `InvalidRow`.
    """
    refused: list[Refused] = []
    while batch.num_rows:
        try:
            return SplitRows((check(batch),), tuple(refused))
        except InvalidRow as error:
            bad = _flags(error, batch.num_rows)
            if bad is None and batch.num_rows > 1:
                halves = _halves(batch, check)
                return SplitRows(halves.taken, (*refused, *halves.refused))
            if bad is None:
                refused.append(Refused(batch, error))
                break
            refused.append(Refused(batch.filter(bad), error))
            batch = batch.filter(pc.invert(bad))
    return SplitRows((), tuple(refused))


def _flags(error: InvalidRow, rows: int) -> pa.Array | None:
    """Return which rows an error is about; None where it does not say."""
    if error.rows is None or len(error.rows) != rows:
        return None
    bad = error.rows.fill_null(fill_value=False)
    return bad if pc.any(bad).as_py() else None


def _halves(batch: pa.RecordBatch, check: Check) -> SplitRows:
    middle = batch.num_rows // 2
    first, second = (
        split_invalid(batch.slice(0, middle), check),
        split_invalid(batch.slice(middle), check),
    )
    return SplitRows(first.taken + second.taken, first.refused + second.refused)


OnInvalidRow = Literal["fail", "quarantine"]

_INLINE, _INLINE_SHARED = 64 * 1024, 256 * 1024
"""Most bytes of a segment that a task reports instead of writing a file; and what the tasks divide."""


def most_inline(partition: int) -> int:
    """Return the bytes up to which a task reports its segment instead of writing a file.

    A task does not know how many others there are, but for those before it. So the first four may report 64
    KiB each, and partition p after them 256 KiB / (p + 1): the driver gets 1.2 MiB of 200 tasks at most, and
    2.2 MiB of 10,000.

    :param partition: of the task, counted from 0.
    """
    return min(_INLINE, _INLINE_SHARED // (partition + 1))


def append(
    batches: Iterable[pa.RecordBatch],
    *,
    task: Task,
    backend: StateBackend,
    check: Callable[[pa.RecordBatch], pa.RecordBatch],
    compression: Compression,
    on_invalid_row: OnInvalidRow = "fail",
    inline_bytes: int = 0,
) -> Appended:
    """Stream `batches` through `check` into a segment; no segment when there are no rows.

    When anything raises, what was written is discarded: Spark offers no hook for a failed attempt.

    :param on_invalid_row: `quarantine`: rows that `check` refuses go into a segment of their own.
    :param inline_bytes: a segment of at most this number of bytes is reported, and no file is written. That
        of refused rows, which are few and rare, is a file.
    :raises InvalidRow: from `check`, or a text is not UTF-8; nothing of the epoch is published then.
    :raises LogFull: the disk is full.
    :raises LogUnavailable: the store of the log refuses, or does not answer.
    """
    with log_errors(backend.url), contextlib.ExitStack() as stack:
        planned = newest_number(LogStore(backend)) if task.partition == 0 else None
        taken, refused = (
            _Segment(stack, task, backend, compression, inline) for inline in (inline_bytes, 0)
        )

        def check_all(batch: pa.RecordBatch) -> pa.RecordBatch:
            refuse_invalid_utf8(batch)
            return check(batch)

        def checked() -> Iterator[pa.RecordBatch]:
            for batch in map(in_utc, batches):
                if not batch.num_rows:
                    continue
                if on_invalid_row == "fail":
                    yield check_all(batch)
                    continue
                split = split_invalid(batch, check_all)
                for rows, error in split.refused:
                    texts = ("InvalidRow", error.target, error.column, error.problem, error.remedy)
                    refused.write(with_reasons(rows, texts))
                yield from split.taken

        for batch in coalesced(checked()):
            taken.write(batch)
        return Appended(
            **task.execution._asdict(),
            segments=taken.close(),
            refused=refused.close(),
            planned=planned,
        )


class _Segment:
    """A segment that begins with its first batch.

    :param stack: discards the file when it is left by an exception, and makes it durable otherwise.
    """

    def __init__(
        self,
        stack: contextlib.ExitStack,
        task: Task,
        backend: StateBackend,
        compression: Compression,
        inline_bytes: int,
    ) -> None:
        nonce = f"{task.call}{uuid.uuid4().hex}"[:32]
        name = SegmentName(task.epoch, task.partition, task.task_attempt, task.run_id, nonce)
        path = paths.SEGMENT.path(name)
        self._path = path
        self._compression = compression
        # No method of this object: the garbage collector does not see that pyarrow's writer holds its output,
        # so an output that leads back to the writer would stay, with its bytes, as long as the worker runs.
        self._output = _Output(lambda: stack.enter_context(backend.open_output(path)), inline_bytes)
        self._writer: SegmentWriter | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch."""
        if self._writer is None:
            self._writer = SegmentWriter(self._output, batch.schema, self._compression)
        self._writer.write(batch)

    def close(self) -> tuple[SegmentRef, ...]:
        """Write the footer; return the segment, if there is one."""
        if self._writer is None:
            return ()
        ref = self._writer.close(self._path)
        held = self._output.held
        return (ref if held is None else msgspec.structs.replace(ref, data=bytes(held)),)


class _Output:
    """Holds what is written, until that is too much: then all of it goes into a file.

    :param most: bytes.
    """

    def __init__(self, open_file: Callable[[], BinaryIO], most: int) -> None:
        self.held: bytearray | None = bytearray()
        """All that was written; None: it is in the file."""
        self._open_file = open_file
        self._most = most
        self._file: BinaryIO | None = None

    def write(self, data: bytes) -> None:
        if self._file is None:
            assert self.held is not None
            if len(self.held) + len(data) <= self._most:
                self.held += data
                return
            self._file = self._open_file()
            self._file.write(self.held)
            self.held = None
        self._file.write(data)
