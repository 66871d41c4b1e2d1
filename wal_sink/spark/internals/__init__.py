"""Wraps every undocumented name of Spark that the sink uses; no other room uses one.

`check_session` is the canary: it looks for each of them before the first query, so that `register` refuses a
Spark that has changed, and no query finds it out at 3 a.m. Tested with the versions in `TESTED`.
"""

from wal_sink.spark.internals.arrow import (
    answers_of,
    arrow_schema,
    expected_bytes,
    map_in_arrow,
    session_of,
)
from wal_sink.spark.internals.events import CheckpointListener, add_listener, remove_listener
from wal_sink.spark.internals.names import TESTED
from wal_sink.spark.internals.query import (
    OwnSession,
    active_query,
    checkpoint_root,
    folder,
    has_ended,
    is_active,
    last_commit,
    output_mode,
    own_session,
    running_queries,
    started_query,
    stop,
)
from wal_sink.spark.internals.session import (
    cancel_jobs,
    check_session,
    drop_interrupted_call,
    is_stopped,
    put_on_workers_path,
    session_id,
    slots,
    worker_python,
)
from wal_sink.spark.internals.task import current_execution, current_task

__all__ = [
    "TESTED",
    "CheckpointListener",
    "OwnSession",
    "active_query",
    "add_listener",
    "answers_of",
    "arrow_schema",
    "cancel_jobs",
    "check_session",
    "checkpoint_root",
    "current_execution",
    "current_task",
    "drop_interrupted_call",
    "expected_bytes",
    "folder",
    "has_ended",
    "is_active",
    "is_stopped",
    "last_commit",
    "map_in_arrow",
    "output_mode",
    "own_session",
    "put_on_workers_path",
    "remove_listener",
    "running_queries",
    "session_id",
    "session_of",
    "slots",
    "started_query",
    "stop",
    "worker_python",
]
