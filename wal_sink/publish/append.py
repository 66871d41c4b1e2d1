"""Appends a task's rows to the log as a segment, checked (step 2).

Afterwards the segment is durable, and nothing refers to it. If this attempt loses, or the epoch is run
again, no manifest will name it; only the publisher makes it part of an epoch.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable

import pyarrow as pa

from state_backends import StateBackend
from wal_sink.arrow_batches import coalesced
from wal_sink.model import paths
from wal_sink.model.manifest import SegmentRef
from wal_sink.model.task import Appended, Task
from wal_sink.wal.segment import Compression, SegmentWriter
from wal_sink.wal.store_errors import full_disk_errors


def append(
    batches: Iterable[pa.RecordBatch],
    *,
    task: Task,
    backend: StateBackend,
    check: Callable[[pa.RecordBatch], pa.RecordBatch],
    compression: Compression,
) -> Appended:
    """Stream `batches` through `check` into a segment; no segment when there are no rows.

    When anything raises, the segment is discarded: Spark offers no hook for a failed attempt.

    :raises InvalidRow: from `check`; nothing of the epoch is published then.
    :raises LogFull: the disk is full.
    """
    nonce = f"{task.call}{uuid.uuid4().hex}"[:32]
    unique = paths.unique_in_run(task.run_id, nonce)
    path = paths.segment(task.epoch, task.partition, task.attempt, unique)
    segments: tuple[SegmentRef, ...] = ()
    with full_disk_errors(backend.url), contextlib.ExitStack() as stack:
        writer: SegmentWriter | None = None
        for checked in coalesced(check(batch) for batch in batches if batch.num_rows):
            if writer is None:
                output = stack.enter_context(backend.open_output(path))
                writer = SegmentWriter(output, checked.schema, compression)
            writer.write(checked)
        if writer is not None:
            segments = (writer.close(path),)
    return Appended(query_id=task.query_id, run_id=task.run_id, epoch=task.epoch, segments=segments)
