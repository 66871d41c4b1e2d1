"""What an operator does about a played query, whose target is not in the options of its log."""

from __future__ import annotations

from wal_sink.admin import repair
from wal_sink.admin.query import Query
from wal_sink.flush.pipeline import Pipeline


class _PlayedQuery(Query):
    """A query whose pipelines are given."""


def set_mark(pipeline: Pipeline, epoch: int) -> None:
    """Do as `wal-sink set-mark` does."""
    query = _PlayedQuery(pipeline.query_id, pipeline.checkpoint, pipeline.store)
    query.pipelines = lambda *_: [pipeline]  # type: ignore[method-assign]
    repair.set_mark(query, epoch, "")
