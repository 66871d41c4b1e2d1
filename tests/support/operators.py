"""Commands of an operator on a played query, whose log has no options of a target."""

from __future__ import annotations

from wal_sink.admin import repair
from wal_sink.admin.query import Query
from wal_sink.flush.pipeline import Pipeline


class _PlayedQuery(Query):
    """A query with attributes, unlike its base, which is a named tuple."""


def set_mark(pipeline: Pipeline, epoch: int) -> None:
    """Set the mark, as `wal-sink set-mark` does."""
    query = _PlayedQuery(pipeline.query_id, pipeline.checkpoint, pipeline.store)
    query.pipelines = lambda *_: [pipeline]  # type: ignore[method-assign]
    repair.set_mark(query, epoch, "")
