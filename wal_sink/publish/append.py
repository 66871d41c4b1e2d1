"""Appends a task's rows to the log as segments, checked (step 2).

Afterwards the segments are durable, and nothing refers to them. If this attempt loses, or the epoch is run
again, no manifest will name them; only the publisher makes them part of an epoch.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import pyarrow as pa

from state_backends import StateBackend
from wal_sink.arrow_batches import coalesced
from wal_sink.model import paths
from wal_sink.model.manifest import SegmentRef
from wal_sink.model.task import Appended, Task
from wal_sink.publish.sift import sift
from wal_sink.wal.refused import refused_rows
from wal_sink.wal.segment import Compression, SegmentWriter
from wal_sink.wal.store_errors import full_disk_errors

OnInvalidRow = Literal["fail", "quarantine"]


def append(
    batches: Iterable[pa.RecordBatch],
    *,
    task: Task,
    backend: StateBackend,
    check: Callable[[pa.RecordBatch], pa.RecordBatch],
    compression: Compression,
    on_invalid_row: OnInvalidRow = "fail",
) -> Appended:
    """Stream `batches` through `check` into a segment; no segment when there are no rows.

    When anything raises, what was written is discarded: Spark offers no hook for a failed attempt.

    :param on_invalid_row: `quarantine`: rows that `check` refuses go into a segment of their own (rule 24).
    :raises InvalidRow: from `check`; nothing of the epoch is published then.
    :raises LogFull: the disk is full.
    """
    with full_disk_errors(backend.url), contextlib.ExitStack() as stack:
        taken, refused = (_Segment(stack, task, backend, compression) for _ in range(2))

        def checked() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                if not batch.num_rows:
                    continue
                if on_invalid_row == "fail":
                    yield check(batch)
                    continue
                sifted = sift(batch, check)
                for rows, error in sifted.refused:
                    texts = ("InvalidRow", error.target, error.column, error.problem, error.remedy)
                    refused.write(refused_rows(rows, texts))
                yield from sifted.taken

        for batch in coalesced(checked()):
            taken.write(batch)
        return Appended(
            query_id=task.query_id,
            run_id=task.run_id,
            epoch=task.epoch,
            segments=taken.close(),
            refused=refused.close(),
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
    ) -> None:
        nonce = f"{task.call}{uuid.uuid4().hex}"[:32]
        unique = paths.unique_in_run(task.run_id, nonce)
        self._path = paths.segment(task.epoch, task.partition, task.attempt, unique)
        self._stack = stack
        self._backend = backend
        self._compression = compression
        self._writer: SegmentWriter | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch."""
        if self._writer is None:
            output = self._stack.enter_context(self._backend.open_output(self._path))
            self._writer = SegmentWriter(output, batch.schema, self._compression)
        self._writer.write(batch)

    def close(self) -> tuple[SegmentRef, ...]:
        """Write the footer; return the segment, if there is one."""
        return () if self._writer is None else (self._writer.close(self._path),)
