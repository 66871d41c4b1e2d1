"""What a flusher reports of itself, and whether it seems alive to those who read it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import uuid

import pytest

from state_backends import open_backend
from wal_sink.errors import TargetRefused, TargetUnavailable
from wal_sink.flush import report as reporter
from wal_sink.flush.report import Reporter
from wal_sink.model import paths
from wal_sink.progress.report import (
    ENDED,
    SILENT_S,
    ErrorReport,
    FlusherReport,
    is_alive,
    read_report,
    stopping_error,
    this_process,
)
from wal_sink.wal.store import LogStore

NOW_US = 1_700_000_000_000_000
TARGET = "orders"


def report(**changes: object) -> FlusherReport:
    fields = {"flusher": "elsewhere:1", "doing": "writing epoch 1", "heartbeat_us": NOW_US}
    return FlusherReport(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("age_s", "alive"),
    [(0, True), (SILENT_S - 1, True), (1 - SILENT_S, True), (SILENT_S + 1, False), (-3_600, False)],
)
def test_report_near_now_is_of_a_live_flusher(age_s: float, *, alive: bool) -> None:
    """On either side: its host's clock may be ahead."""
    assert is_alive(report(), NOW_US + int(age_s * 1_000_000)) is alive


def test_flusher_that_ended_or_never_reported_is_none() -> None:
    """Its process may go on, as in a notebook whose handle is closed."""
    assert not is_alive(report(doing=ENDED), NOW_US)
    assert not is_alive(None, NOW_US)


def test_flusher_whose_process_is_gone_is_dead() -> None:
    """On this host the process is known; a number in use by another user's process counts as alive."""
    here = socket.gethostname()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert not is_alive(report(flusher=f"{here}:{gone.pid}"), NOW_US)
    assert is_alive(report(flusher=f"{here}:{os.getpid()}"), NOW_US)
    assert is_alive(report(flusher=f"{here}:1"), NOW_US)
    assert is_alive(report(flusher=f"{here}:nonsense"), NOW_US)


@pytest.mark.parametrize("transient", [False, True])
@pytest.mark.parametrize("age_s", [0, 3_600])
def test_error_that_stays_stops_those_who_wait(*, transient: bool, age_s: int) -> None:
    """Not one that passes by itself, nor one of a flusher that is long gone."""
    error = ErrorReport(
        kind="TargetRefused",
        what="no table",
        remedy="Make it.",
        epoch=1,
        at_us=1,
        transient=transient,
    )
    stopped = stopping_error(report(error=error), NOW_US + age_s * 1_000_000)
    if transient or age_s:
        assert stopped is None
    else:
        assert isinstance(stopped, TargetRefused)
        assert (stopped.what, stopped.remedy) == ("no table", "Make it.")


# --- the flusher's side ---


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> LogStore:
    """A log in memory; reports come a hundred times as fast."""
    monkeypatch.setattr(reporter, "REPORT_S", 0.1)
    monkeypatch.setattr(reporter, "_CHECK_S", 0.02)
    return LogStore(open_backend(f"memory://{uuid.uuid4().hex}/log"))


def heartbeats(store: LogStore, for_s: float) -> set[object]:
    """Return the times of the reports that are there meanwhile."""
    times: set[object] = set()
    until_s = time.monotonic() + for_s
    while time.monotonic() < until_s:
        last = read_report(store, TARGET)
        times.add(last and last.heartbeat_us)
        time.sleep(0.01)
    return times


def wait_for_reports(store: LogStore, enough: int) -> None:
    """Wait until so many reports came; on a busy machine each may be late."""
    times: set[object] = set()
    until_s = time.monotonic() + 30
    while len(times) < enough:
        assert time.monotonic() < until_s, f"{len(times)} reports in 30 s"
        times |= heartbeats(store, 0.05)


def test_flusher_in_a_long_request_goes_on_reporting(store: LogStore) -> None:
    """And says what it does."""
    flusher = Reporter(store, TARGET)
    with flusher.beating():
        assert heartbeats(store, 0.3) == {None}, "it has not said anything"
        flusher.report("writing", 7)
        wait_for_reports(store, 4)
        last = read_report(store, TARGET)
        assert last is not None
        assert (last.doing, last.flusher) == ("writing epoch 7", this_process())
        flusher.failed(TargetUnavailable("down"), wait_s=9)
        wait_for_reports(store, 3)
        last = read_report(store, TARGET)
        assert last is not None
        assert last.doing == "trying again at epoch 7: 1 try, the next in 9 s"
    flusher.ended()
    assert len(heartbeats(store, 0.5)) == 1
    last = read_report(store, TARGET)
    assert last is not None
    assert (last.doing, last.error and last.error.kind) == (ENDED, "TargetUnavailable")


def test_flusher_that_hangs_goes_silent(store: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread says nothing, for longer than any request takes: others are to know."""
    monkeypatch.setattr(reporter, "HUNG_S", 0.5)
    flusher = Reporter(store, TARGET)
    with flusher.beating():
        flusher.report("writing", 7)
        wait_for_reports(store, 2)
        time.sleep(0.8)
        assert len(heartbeats(store, 0.5)) == 1
        flusher.report("writing", 8)
        wait_for_reports(store, 2)


def test_error_of_an_epoch_stands_until_it_is_flushed(store: LogStore) -> None:
    """A pass may end without what had failed: it was interrupted, or another flusher was quicker."""
    flusher = Reporter(store, TARGET)
    flusher.report("writing", 7)
    flusher.failed(TargetRefused("no table"))
    for flushed, kind in ((6, "TargetRefused"), (7, None)):
        flusher.succeeded(flushed)
        last = read_report(store, TARGET)
        assert last is not None
        assert (last.error and last.error.kind) == kind


@pytest.mark.parametrize("other", ["alive", "ended", "silent"])
def test_flusher_for_a_moment_hides_no_live_one(store: LogStore, other: str) -> None:
    """Such as `wal-sink flush`: it reports only where no other process does."""
    now_us = NOW_US + (3_600_000_000 if other == "silent" else 0)
    theirs = report(doing=ENDED if other == "ended" else "writing epoch 1")
    store.replace(paths.REPORT.path(TARGET), theirs.to_json())
    guest = Reporter(store, TARGET, lambda: now_us, gives_way=True)
    guest.report("connecting", None)
    last = read_report(store, TARGET)
    assert last is not None
    assert (last == theirs) is (other == "alive")


def test_two_flushers_of_a_query_are_warned_of(
    store: LogStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A superseded driver may hang and flush on for days: rows are exact, and nothing else would tell."""
    path = paths.REPORT.path(TARGET)
    store.replace(path, report().to_json())
    mine = Reporter(store, TARGET)
    mine.report("starting", None)
    mine.report("connecting", None)
    assert not caplog.messages, "who reported before this one may have ended"
    store.replace(path, report(doing=ENDED).to_json())
    mine = Reporter(store, TARGET)
    mine.report("connecting", None)
    store.replace(path, report(heartbeat_us=NOW_US + 1).to_json())
    mine.report("idle", None)
    store.replace(path, report(heartbeat_us=NOW_US + 2).to_json())
    mine.report("connecting", None)
    (line,) = caplog.messages
    assert "another process flushes this query, too: elsewhere:1" in line


def test_report_that_cannot_be_written_stops_no_flush(
    store: LogStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`status` shows an old one, and the log of the process says why."""

    def refuse(_path: str, _data: bytes) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(store.backend, "replace", refuse)
    Reporter(store, TARGET).report("connecting", None)
    assert "report-orders.json cannot be written" in caplog.text
