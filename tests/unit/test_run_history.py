"""What the listener notes of Spark's events, made from their JSON as Spark sends them."""

from __future__ import annotations

import uuid

import pytest
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

from wal_sink.flush.run_history import RunHistory
from wal_sink.spark.listener import Listener

QUERY, FIRST, SECOND = (str(uuid.UUID(int=number)) for number in (1, 2, 3))


class Quiet:
    """Is told of events."""

    def started(self, query_id: str, run_id: str) -> None:
        """Fail, as when no ticket can be taken."""
        raise OSError("disk full")

    def progressed(self, query_id: str) -> None:
        """Nothing to do."""

    def terminated(self, query_id: str, run_id: str) -> None:
        """Nothing to do."""


@pytest.fixture
def run_history() -> RunHistory:
    """Watches the query."""
    run_history = RunHistory()
    run_history.watch(QUERY)
    return run_history


@pytest.fixture
def listener(run_history: RunHistory) -> Listener:
    """Tells the run_history."""
    return Listener(Quiet(), run_history)


def start(listener: Listener, run: str) -> None:
    event = {"id": QUERY, "runId": run, "name": None, "timestamp": "2026-01-01T00:00:00.000Z"}
    listener.onQueryStarted(QueryStartedEvent.fromJson({**event, "jobTags": []}))


def progress(listener: Listener, run: str, epoch: int, query: str = QUERY) -> None:
    listener.onQueryProgress(QueryProgressEvent(_progress(query, run, epoch)))


def _progress(query: str, run: str, epoch: int) -> StreamingQueryProgress:
    return StreamingQueryProgress.fromJson(
        {
            "id": query,
            "runId": run,
            "name": None,
            "timestamp": "2026-01-01T00:00:00.000Z",
            "batchId": epoch,
            "batchDuration": 1,
            "durationMs": {},
            "eventTime": {},
            "stateOperators": [],
            "sources": [],
            "sink": {"description": "sink", "numOutputRows": 1, "metrics": {}},
            "numInputRows": 1,
            "inputRowsPerSecond": 1.0,
            "processedRowsPerSecond": 1.0,
            "observedMetrics": {},
        }
    )


def end(listener: Listener, run: str, error_class: str | None = None) -> None:
    listener.onQueryTerminated(
        QueryTerminatedEvent.fromJson(
            {"id": QUERY, "runId": run, "exception": None, "errorClassOnException": error_class}
        )
    )


def test_a_run_lives_from_its_start_to_its_end(listener: Listener, run_history: RunHistory) -> None:
    """Also when no ticket could be taken; a late event of an earlier run changes nothing."""
    assert run_history.running(QUERY) is None
    start(listener, FIRST)
    assert run_history.running(QUERY) == FIRST
    start(listener, SECOND)
    end(listener, FIRST)
    assert run_history.running(QUERY) == SECOND
    end(listener, SECOND)
    assert run_history.running(QUERY) is None


def test_a_progress_event_names_the_run_that_was_kept(
    listener: Listener, run_history: RunHistory
) -> None:
    """Unless a rival started after it; and of this query only."""
    start(listener, FIRST)
    progress(listener, FIRST, 4)
    assert run_history.committed(QUERY, 4, [FIRST, "elsewhere"]) == FIRST
    assert run_history.committed(QUERY, 5, [FIRST]) is None
    start(listener, SECOND)
    assert run_history.committed(QUERY, 4, [FIRST]) == FIRST
    assert run_history.committed(QUERY, 4, [FIRST, SECOND]) is None
    progress(listener, SECOND, 4)
    assert run_history.committed(QUERY, 4, [FIRST, SECOND]) == SECOND


@pytest.mark.parametrize("error_class", ["CONCURRENT_STREAM_LOG_UPDATE", "STREAM_FAILED", None])
def test_a_run_that_gave_way_has_lost_what_it_was_not_seen_to_commit(
    listener: Listener, run_history: RunHistory, error_class: str | None
) -> None:
    """Spark names the error; any other end proves nothing."""
    start(listener, FIRST)
    progress(listener, FIRST, 4)
    end(listener, FIRST, error_class)
    lost = {FIRST} if error_class == "CONCURRENT_STREAM_LOG_UPDATE" else set()
    assert run_history.lost(QUERY, 5, [FIRST, SECOND]) == lost
    assert run_history.lost(QUERY, 4, [FIRST, SECOND]) == set()


def test_queries_that_no_flusher_watches_are_not_remembered(run_history: RunHistory) -> None:
    """Of other formats, or flushed elsewhere."""
    listener = Listener(Quiet(), run_history)
    progress(listener, FIRST, 4, query=SECOND)
    assert run_history.committed(SECOND, 4, [FIRST]) is None
    assert run_history.lost(SECOND, 4, [FIRST]) == set()


def test_only_the_newest_events_are_remembered(run_history: RunHistory, listener: Listener) -> None:
    """A query that runs for a year does not fill the memory."""
    start(listener, FIRST)
    for epoch in range(150):
        progress(listener, FIRST, epoch)
    assert run_history.committed(QUERY, 0, [FIRST]) is None
    assert run_history.committed(QUERY, 149, [FIRST]) == FIRST
