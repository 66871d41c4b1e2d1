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

from wal_sink.errors import OptionError, WalSinkError
from wal_sink.flush.run_history import RunHistory
from wal_sink.spark.events import Listener

QUERY, FIRST, SECOND = (str(uuid.UUID(int=number)) for number in (1, 2, 3))


class Quiet:
    """Is told of events.

    :param says: epochs that a run says it has checkpointed, when it is asked; None: it does not answer.
    """

    def __init__(self, run_history: RunHistory | None = None, says: int | None = -1) -> None:
        self._run_history = run_history
        self._says = says

    def started(self, query_id: str, run_id: str) -> None:
        """Fail, as when no ticket can be taken."""
        raise OSError("disk full")

    def progressed(self, query_id: str) -> None:
        """Nothing to do."""

    def has_caught_up(self, query_id: str, run_id: str) -> bool:
        """Ask the run."""
        if self._run_history is not None and self._says is not None:
            self._run_history.caught_up(query_id, run_id, self._says)
        return self._says is not None

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


def end(
    listener: Listener, run: str, error_class: str | None = None, exception: str | None = None
) -> None:
    listener.onQueryTerminated(
        QueryTerminatedEvent.fromJson(
            {
                "id": QUERY,
                "runId": run,
                "exception": exception,
                "errorClassOnException": error_class,
            }
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
    assert run_history.gave_way(QUERY, 5, [FIRST, SECOND]) == lost
    assert run_history.gave_way(QUERY, 4, [FIRST, SECOND]) == set()


def test_queries_that_no_flusher_watches_are_not_remembered(run_history: RunHistory) -> None:
    """Of other formats, or flushed elsewhere."""
    listener = Listener(Quiet(), run_history)
    progress(listener, FIRST, 4, query=SECOND)
    assert run_history.committed(SECOND, 4, [FIRST]) is None
    assert run_history.gave_way(SECOND, 4, [FIRST]) == set()


def test_only_the_newest_events_are_remembered(run_history: RunHistory, listener: Listener) -> None:
    """A query that runs for a year does not fill the memory."""
    start(listener, FIRST)
    for epoch in range(150):
        progress(listener, FIRST, epoch)
    assert run_history.committed(QUERY, 0, [FIRST]) is None
    assert run_history.committed(QUERY, 149, [FIRST]) == FIRST


def test_a_run_that_is_asked_makes_good_for_an_event_that_was_missed(
    listener: Listener, run_history: RunHistory
) -> None:
    """Every run that started after it counts as later than the file; an event that was heard stays."""
    start(listener, FIRST)
    assert run_history.caught_up(QUERY, FIRST, 4)
    assert not run_history.caught_up(QUERY, FIRST, 4), "that is no news"
    assert run_history.committed(QUERY, 4, [FIRST, "elsewhere"]) == FIRST
    start(listener, SECOND)
    assert run_history.caught_up(QUERY, FIRST, 5)
    assert run_history.committed(QUERY, 5, [FIRST, SECOND]) is None
    progress(listener, SECOND, 6)
    assert not run_history.caught_up(QUERY, FIRST, 6)
    assert run_history.committed(QUERY, 6, [FIRST, SECOND]) == SECOND


def test_a_run_that_was_not_seen_to_start_is_not_believed(run_history: RunHistory) -> None:
    """Then nothing tells which runs are later."""
    assert not run_history.caught_up(QUERY, FIRST, 4)
    assert not run_history.caught_up("another query", FIRST, 4)
    assert run_history.committed(QUERY, 4, [FIRST]) is None


@pytest.mark.parametrize(("says", "lost"), [(5, set()), (4, {FIRST}), (None, set())])
def test_a_run_that_gave_way_is_asked_what_it_had_committed_before(
    run_history: RunHistory, says: int | None, lost: set[str]
) -> None:
    """It may have written `commits/5` and given way over `offsets/6`; the event of 5 was missed (rule 11)."""
    listener = Listener(Quiet(run_history, says), run_history)
    start(listener, FIRST)
    end(listener, FIRST, "CONCURRENT_STREAM_LOG_UPDATE")
    assert run_history.gave_way(QUERY, 5, [FIRST, SECOND]) == lost


def test_a_query_that_is_started_again_and_again_does_not_fill_the_memory(
    listener: Listener, run_history: RunHistory
) -> None:
    """Of an event it stays known whether a rival started later; else the event is forgotten, too."""
    start(listener, FIRST)
    progress(listener, FIRST, 4)
    runs = [str(uuid.UUID(int=number)) for number in range(10, 200)]
    for run in runs[:50]:
        start(listener, run)
    assert run_history.committed(QUERY, 4, [FIRST, "elsewhere"]) == FIRST
    assert run_history.committed(QUERY, 4, [FIRST, runs[0]]) is None
    for run in runs[50:]:
        start(listener, run)
    assert run_history.committed(QUERY, 4, [FIRST, runs[0]]) is None
    assert len(run_history._queries[QUERY].runs) == 100


def test_a_query_that_is_done_is_forgotten(listener: Listener, run_history: RunHistory) -> None:
    """A process may run any number of them."""
    start(listener, FIRST)
    progress(listener, FIRST, 4)
    run_history.unwatch(QUERY)
    assert run_history.running(QUERY) is None
    assert run_history.committed(QUERY, 4, [FIRST]) is None
    end(listener, FIRST)
    start(listener, SECOND)
    assert run_history.running(QUERY) is None, "until a flusher watches it again"


class Refusing(Quiet):
    """Refuses each run as it starts."""

    error: WalSinkError = OptionError("Option x is y.", "Write z.")

    def started(self, query_id: str, run_id: str) -> None:
        """Say why."""
        raise self.error


@pytest.mark.parametrize(("what", "times"), [("Option x is y.", 1), ("Option x is w.", 2)])
def test_an_error_that_was_foretold_is_logged_once(
    what: str, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The exception follows; another error than the foretold one has a line of its own."""
    listener = Listener(Refusing(), RunHistory())
    said = f"wal_sink.errors.OptionError: {what}\n  What to do: Write z.\n\tat org.apache.Frame"
    start(listener, FIRST)
    end(listener, FIRST, exception=said)
    assert len(caplog.messages) == times
    assert "will fail at its first micro-batch: Option x is y." in caplog.messages[0]
    caplog.clear()
    end(listener, SECOND, exception=said)
    assert len(caplog.messages) == 1, "a run that started well"
