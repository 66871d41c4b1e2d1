"""The flush of one query, as the handles of this process hold it."""

from __future__ import annotations

from dataclasses import dataclass

from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.flush.loop import FlushedElsewhere, FlushLoop
from wal_sink.wal.log import Log


@dataclass
class QueryFlush:
    """A query, and the thread that flushes it or what stands for it where another process does."""

    query_id: str
    run_id: str
    """Of the run with which this flush began; an event of an earlier run does not concern it."""
    checkpoint: Checkpoint
    log: Log
    loop: FlushLoop | FlushedElsewhere
    taken_over: bool = False
    """Whether the query has started again under another handle, which flushes it since."""
