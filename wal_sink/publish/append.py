"""Appends a task's rows to the log as segments, after checking them.

After `append` a large segment is durable, and a small segment is in the task's report (rule `segments`). No
manifest names the segments yet, because the publisher makes them part of an epoch. The segments of an attempt
that is not published are garbage.

`split_invalid` divides a batch into rows that the target accepts, and rows that its check refuses. A check
raises at the first rule that a row breaks, and reports which rows break this rule. These rows are taken out,
and the check runs again. So it runs once for each broken rule, not for each row, in Arrow kernels without
Python objects for rows. If a check does not report the rows, the batch is halved down to single rows.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.coalesced_batches import coalesced, in_utc
from wal_sink.errors import InvalidRow
from wal_sink.model import paths
from wal_sink.model.manifest import Appended, Task
from wal_sink.model.paths import SegmentName
from wal_sink.targets.arrow_values import refuse_invalid_utf8
from wal_sink.wal.location import log_errors
from wal_sink.wal.segment import Compression, SegmentWriter, with_reasons
from wal_sink.wal.store import LogStore, newest_number

Check = Callable[[pa.RecordBatch], pa.RecordBatch]


class Refused(NamedTuple):
    """Rows that break one rule."""

    rows: pa.RecordBatch
    """The rows with the columns of the DataFrame."""
    error: InvalidRow
    """The error of the first row."""


class SplitRows(NamedTuple):
    """The accepted and the refused rows of a batch, each in the order of the batch."""

    taken: tuple[pa.RecordBatch, ...]
    """Accepted rows, as the check returns them."""
    refused: tuple[Refused, ...]


def split_invalid(batch: pa.RecordBatch, check: Check) -> SplitRows:
    """Divide a batch into accepted rows, and refused rows with the first rule that each of them breaks.

    :param check: returns the batch as the log has it, or raises `InvalidRow`.
    """
    taken: list[pa.RecordBatch] = []
    refused: list[Refused] = []
    unchecked = [batch]
    while unchecked:
        batch = unchecked.pop()
        if not batch.num_rows:
            continue
        try:
            taken.append(check(batch))
        except InvalidRow as error:
            bad = _broken_rows(error, batch.num_rows)
            if bad is not None:
                refused.append(Refused(batch.filter(bad), error))
                unchecked.append(batch.filter(pc.invert(bad)))
            elif batch.num_rows == 1:
                refused.append(Refused(batch, error))
            else:
                middle = batch.num_rows // 2
                unchecked += [batch.slice(middle), batch.slice(0, middle)]
    return SplitRows(tuple(taken), tuple(refused))


def _broken_rows(error: InvalidRow, rows: int) -> pa.Array | None:
    """Return a mask of the rows that caused an error. None if the error does not name its rows."""
    if error.rows is None or len(error.rows) != rows:
        return None
    bad = error.rows.fill_null(fill_value=False)
    return bad if pc.any(bad).as_py() else None


OnInvalidRow = Literal["fail", "quarantine"]

_INLINE, _INLINE_SHARED = 64 * 1024, 256 * 1024
"""Bytes of the largest segment that a task reports instead of writing a file, see `most_inline`. The second
number is divided by the count of tasks up to this task."""


def most_inline(partition: int) -> int:
    """Return the largest segment, in bytes, that a task reports instead of writing a file.

    A task knows how many tasks precede it, but not how many follow. So the tasks of partitions 0 to 3 may
    report 64 KiB each, and the task of a later partition p 256 KiB / (p + 1). The driver gets at most 1.2 MiB
    from 200 tasks, and 2.2 MiB from 10,000.

    :param partition: number of the task's partition, from 0.
    """
    return min(_INLINE, _INLINE_SHARED // (partition + 1))


def append(
    batches: Iterable[pa.RecordBatch],
    *,
    task: Task,
    store: LogStore,
    check: Callable[[pa.RecordBatch], pa.RecordBatch],
    compression: Compression,
    on_invalid_row: OnInvalidRow = "fail",
    inline_bytes: int = 0,
) -> Appended:
    """Check batches and write their rows to a segment. Without rows no segment is written.

    If anything raises, the file is deleted: Spark has no hook for a failed task.

    :param on_invalid_row: with `quarantine`, rows that `check` refuses go into a segment of their own.
    :param inline_bytes: a segment of at most this number of bytes is reported, and gets no file. Refused rows
        are rare, and always get a file.
    :raises InvalidRow: `check` refuses a row, or a text is not UTF-8. Nothing of the epoch is published then.
    :raises LogFull: the disk is full.
    :raises LogUnavailable: the store of the log refuses, or does not answer.
    """
    with log_errors(store.url), contextlib.ExitStack() as stack:
        planned = newest_number(store) if task.partition == 0 else None
        taken, refused = (
            _segment_writer(stack, task, store, compression, inline) for inline in (inline_bytes, 0)
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
            execution=task.execution,
            segments=taken.close(),
            refused=refused.close(),
            planned=planned,
        )


def _segment_writer(
    stack: contextlib.ExitStack,
    task: Task,
    store: LogStore,
    compression: Compression,
    inline_bytes: int,
) -> SegmentWriter:
    """Return a writer for a new segment of a task.

    :param stack: closes the file of the segment, and deletes the file if the block ends by an exception.
    """
    epoch, run_id = task.execution.epoch, task.execution.run_id
    nonce = f"{task.call}{uuid.uuid4().hex}"[:32]
    name = SegmentName(epoch, task.partition, task.task_attempt, run_id, nonce)
    path = paths.SEGMENT.path(name)
    return SegmentWriter(
        path, lambda: stack.enter_context(store.open_output(path)), compression, inline_bytes
    )
