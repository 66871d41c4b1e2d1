"""What a flusher reports, and what other processes conclude from the report."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import uuid

import pytest

from state_backends import open_backend
from tests.protocol.engine import NOW_US, Clock
from tests.support.waiting import until
from wal_sink.errors import CorruptLog, TargetUnavailable
from wal_sink.flush import reporter
from wal_sink.flush.reporter import Reporter
from wal_sink.progress.flusher_report import (
    ENDED,
    SILENT_S,
    ErrorReport,
    FlusherReport,
    age_s,
    is_alive,
    read_report,
    stopping_error,
    this_process,
)
from wal_sink.testing.faults import Faults, FaultyBackend
from wal_sink.wal.store import LogStore

TARGET = "cassandra"
PATH = "report-cassandra.json"


def report(flusher: str = "elsewhere:1", doing: str = "writing") -> FlusherReport:
    return FlusherReport(flusher=flusher, doing=doing, heartbeat_us=NOW_US)


def error(*, transient: bool) -> ErrorReport:
    kind = "TargetUnavailable" if transient else "CorruptLog"
    return ErrorReport(
        kind=kind, what="it", remedy="do", epoch=3, at_us=NOW_US, transient=transient
    )


def after(seconds: float) -> int:
    return NOW_US + int(seconds * 1_000_000)


def test_flusher_with_a_recent_report_is_alive() -> None:
    """The clock of the flusher's host may be ahead."""
    for age, alive in ((0, True), (SILENT_S, True), (-SILENT_S, True), (SILENT_S + 1, False)):
        assert is_alive(report(), after(age)) is alive
        assert age_s(report(), after(age)) == age
    assert not is_alive(report(), after(-SILENT_S - 1))
    assert not is_alive(None, NOW_US)
    assert not is_alive(report(doing=ENDED), NOW_US)


def test_flusher_whose_local_process_is_gone_is_dead() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    host = socket.gethostname()
    assert not is_alive(report(f"{host}:{gone.pid}"), NOW_US)
    assert is_alive(report(f"{host}:{os.getpid()}"), NOW_US)
    assert is_alive(report(f"elsewhere:{gone.pid}"), NOW_US), "it is another host's number"


def test_permanent_error_in_a_report_is_raised() -> None:
    """A transient error is not raised, nor is an error whose flusher has not reported for long."""
    stopped = FlusherReport(
        flusher="elsewhere:1", doing="", heartbeat_us=NOW_US, error=error(transient=False)
    )
    raised = stopping_error(stopped, NOW_US)
    assert isinstance(raised, CorruptLog)
    assert (raised.what, raised.remedy) == ("it", "do")
    assert isinstance(stopping_error(stopped, after(SILENT_S + 1)), CorruptLog)
    assert stopping_error(stopped, after(10 * SILENT_S)) is None
    passing = FlusherReport(
        flusher="elsewhere:1", doing="", heartbeat_us=NOW_US, error=error(transient=True)
    )
    assert stopping_error(passing, NOW_US) is None
    assert stopping_error(None, NOW_US) is None


# --- the flusher's side ---------------------------------------------------------------------------


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> LogStore:
    """A log in memory. Reports come a hundred times as often."""
    monkeypatch.setattr(reporter, "REPORT_S", 0.1)
    monkeypatch.setattr(reporter, "_CHECK_S", 0.02)
    return open_backend(f"memory://{uuid.uuid4().hex}/log")


def heartbeats(store: LogStore, enough: int) -> None:
    """Wait until this number of different reports was read. On a busy machine each may be late."""
    times: set[int | None] = set()
    until_s = time.monotonic() + 30
    while len(times) < enough:
        assert time.monotonic() < until_s, f"{len(times)} reports in 30 s"
        last = read_report(store, TARGET)
        times.add(last.heartbeat_us if last is not None else None)
        time.sleep(0.01)


def quiet(store: LogStore, for_s: float) -> bool:
    """Return True if no report is written in this time."""
    report = read_report(store, TARGET)
    time.sleep(for_s)
    return read_report(store, TARGET) == report


def test_flusher_reports_during_a_long_request(store: LogStore) -> None:
    own = Reporter(store, TARGET, Clock())
    with own.beating():
        assert quiet(store, 0.3), "it has reported nothing yet"
        own.report("writing", 7)
        heartbeats(store, 4)
        last = read_report(store, TARGET)
        assert last is not None
        assert last.flusher == this_process()
        assert re.fullmatch(r"writing epoch 7, for \d+ s", last.doing)
        own.failed(TargetUnavailable("down", "wait"), wait_s=9)
        heartbeats(store, 3)
        last = read_report(store, TARGET)
        assert last is not None
        assert last.doing == "trying again at epoch 7: 1 try, the next in 9 s"
        assert last.error is not None
        assert last.error.epoch == 7
    own.ended()
    last = read_report(store, TARGET)
    assert last is not None
    assert last.doing == ENDED
    assert quiet(store, 0.3)


def test_hanging_flusher_stops_reporting(store: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "HUNG_S", 0.5)
    own = Reporter(store, TARGET, Clock())
    with own.beating():
        own.report("writing", 7)
        heartbeats(store, 2)
        time.sleep(0.8)
        assert quiet(store, 0.5)
        own.report("writing", 8)
        heartbeats(store, 2)


def test_command_reports_only_if_no_flusher_is_alive(store: LogStore) -> None:
    guest = Reporter(store, TARGET, lambda: NOW_US, gives_way=True)
    store.replace(PATH, report().to_json())
    guest.report("reading", None)
    assert read_report(store, TARGET) == report()
    later = Reporter(store, TARGET, lambda: after(SILENT_S + 1), gives_way=True)
    later.report("reading", None)
    last = read_report(store, TARGET)
    assert last is not None
    assert last.flusher == this_process()


@pytest.mark.parametrize("flusher", ["elsewhere:1", this_process()], ids=["other", "same"])
def test_ended_flusher_keeps_the_report_of_another(store: LogStore, flusher: str) -> None:
    """The other flusher is in another process, or belongs to another handle of this process."""
    own = Reporter(store, TARGET, Clock())
    own.report("starting", None)
    store.replace(PATH, report(flusher).to_json())
    own.ended()
    assert read_report(store, TARGET) == report(flusher)


def test_report_that_cannot_be_written_logs_a_warning(
    store: LogStore, caplog: pytest.LogCaptureFixture
) -> None:
    faults = Faults(at=0, error=OSError, matching="replace")
    own = Reporter(FaultyBackend(store, faults), TARGET, Clock())
    own.report("starting", None)
    assert faults.injected
    assert f"{PATH} cannot be written" in caplog.text


def test_stop_of_a_run_is_reported_at_once(
    store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `commit()` that waits for space in another process learns of the stop only by the report."""
    monkeypatch.setattr("wal_sink.flush.reporter.REPORT_S", 3_600)
    stopping = [""]
    own = Reporter(store, TARGET, Clock(), stopping=lambda: stopping[0])
    with own.beating():
        own.report("waiting", None)
        stopping[0] = "run-7"
        until(lambda: getattr(read_report(store, TARGET), "stopping", "") == "run-7")
