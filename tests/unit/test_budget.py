"""Backpressure in the log: what is published, what waits, what is refused; decided over values."""

from __future__ import annotations

import pytest

from wal_sink.errors import NoFlusher, TargetRefused, WalSinkError
from wal_sink.model.records import Backlog, ErrorReport, FlusherReport
from wal_sink.progress.heartbeat import stopping_error
from wal_sink.protocol.budget import (
    NO_FLUSHER_S,
    SILENT_FLUSHER_S,
    Budget,
    Flushing,
    has_space,
    has_to_sweep,
    refuse_full,
    waiting,
)

NOW_US = 1_700_000_000_000_000


def held(epochs: int, stored_bytes: int) -> Backlog:
    """Return a backlog of so many bytes on the disk; what is to be sent does not matter."""
    return Backlog(
        checkpointed=epochs - 1,
        flushed=-1,
        epochs=epochs,
        rows=0,
        bytes=0,
        stored_bytes=stored_bytes,
        oldest_us=None,
        read_us=NOW_US,
    )


FULL = held(3, 1_500)
BLOCK, FAIL = Budget(1_000, "block"), Budget(1_000, "fail")


def report(**error: object) -> FlusherReport:
    """Say what a flusher on another host would."""
    found = {"kind": "TargetUnavailable", "what": "no answer", "remedy": "wait", "transient": True}
    return FlusherReport(
        flusher="there:1",
        doing="writing epoch 4",
        heartbeat_us=NOW_US,
        beat=1,
        error=ErrorReport(**{**found, "at_us": NOW_US, **error}) if error else None,  # type: ignore[arg-type]
    )


ALIVE = Flushing(report(), None, 0.0, 2.0)
ALONE = Flushing(None, None, 1.0, 0.0)


@pytest.mark.parametrize(
    ("backlog", "space"),
    [
        (held(0, 0), True),
        (held(1, 999), True),
        (held(1, 1_000), False),
        (held(9, 5_000), False),
        (held(9, 0), True),
    ],
)
def test_whether_there_is_space(backlog: Backlog, space: bool) -> None:
    """What waits counts, and not what is asked for: an empty log takes any epoch."""
    assert has_space(backlog, BLOCK) is space


def test_a_flusher_that_is_not_there_is_waited_for_a_while() -> None:
    """A flusher may be on its way; the text says what happens if it is not."""
    refuse_full(7, FULL, BLOCK, ALONE, "file:///c")
    said = waiting(7, FULL, BLOCK, ALONE)
    assert "within 60 s, the query fails with NoFlusher" in said
    assert "wal-sink flush" in said
    with pytest.raises(NoFlusher) as caught:
        refuse_full(7, FULL, BLOCK, ALONE._replace(no_flusher_s=NO_FLUSHER_S), "file:///c")
    assert "`wal-sink flush file:///c --follow`" in str(caught.value)
    assert caught.value.exit_code == 4
    silent = ALONE._replace(no_flusher_s=SILENT_FLUSHER_S - 1, process_runs=True)
    refuse_full(7, FULL, BLOCK, silent, "file:///c")
    assert "within 900 s" in waiting(7, FULL, BLOCK, silent)
    with pytest.raises(NoFlusher):
        refuse_full(7, FULL, BLOCK, silent._replace(no_flusher_s=SILENT_FLUSHER_S), "file:///c")


def test_the_error_that_stopped_the_flush_is_raised() -> None:
    """Rule 21: waiting would not help; an operator has to act."""
    refused = report(kind="TargetRefused", what="no such table", transient=False)
    stopped = stopping_error(refused, NOW_US, alive=None)
    assert isinstance(stopped, TargetRefused)
    with pytest.raises(TargetRefused, match="no such table"):
        refuse_full(7, FULL, BLOCK, Flushing(refused, stopped, 0.0, 0.0), "file:///c")
    for hours in (-1, 1):
        elsewhen_us = NOW_US + hours * 3_600_000_000
        assert stopping_error(refused, elsewhen_us, alive=None) is None, "it may be dead"
        assert stopping_error(refused, elsewhen_us, alive=False) is None
        assert stopping_error(refused, elsewhen_us, alive=True) is not None, "its clock is wrong"
    assert stopping_error(report(what="passes"), NOW_US, alive=True) is None
    odd = stopping_error(report(kind="__name__", transient=False), NOW_US, alive=True)
    assert type(odd) is WalSinkError


@pytest.mark.parametrize(
    ("left", "waits", "free", "expected"),
    [
        (499, 500, None, False),
        (500, 500, None, True),
        (1_000, 0, None, True),
        (400, 0, 400, False),
        (401, 0, 400, True),
    ],
)
def test_what_earlier_runs_have_left_counts_when_a_run_starts(
    left: int, waits: int, free: int | None, expected: bool
) -> None:
    """Together with what waits; and when the disk could not take as much again."""
    assert has_to_sweep(left, held(1, waits), BLOCK, free) is expected
