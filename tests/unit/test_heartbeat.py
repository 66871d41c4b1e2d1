"""Whether a flusher is alive: its report has to change before the observer's own eyes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import uuid

import pytest
from wal_sink.model.records import FlusherReport
from wal_sink.progress.heartbeat import (
    BEAT_BILLED_S,
    ENDED,
    SILENT_S,
    FlusherWatch,
    reported_ago,
    seems_alive,
    this_process,
)
from wal_sink.wal.log import Log

from state_backends import open_backend
from wal_sink.flush import report as reporter
from wal_sink.flush.report import Reporter

NOW_US = 1_700_000_000_000_000
YEARS = 10 * 365 * 86_400


class Observer:
    """An observer whose time passes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 7.0
        self.watch = FlusherWatch(lambda: self.now_s)

    def look(self, report: FlusherReport | None, after_s: float = 0.0) -> bool | None:
        self.now_s += after_s
        return self.watch.look(report)


def report(beat: int = 0, **changes: object) -> FlusherReport:
    said = {"flusher": "elsewhere:1", "doing": "resting", "heartbeat_us": NOW_US, "beat": beat}
    return FlusherReport(**(said | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("ahead_s", [-YEARS, -3_600, 0, 3_600, YEARS])
def test_it_lives_while_its_report_changes(ahead_s: int) -> None:
    """Whatever time it tells: a fast clock does not keep it alive, and a slow one does not kill it."""
    told_us = NOW_US + ahead_s * 1_000_000
    observer = Observer()
    assert observer.look(report(1, heartbeat_us=told_us)) is None
    assert observer.look(report(1, heartbeat_us=told_us), SILENT_S - 1) is None
    for beat in range(2, 20):
        assert observer.look(report(beat, heartbeat_us=told_us), BEAT_BILLED_S) is True
    assert observer.look(report(19, heartbeat_us=told_us), SILENT_S - 1) is True
    assert observer.look(report(19, heartbeat_us=told_us), 1) is True
    assert observer.look(report(19, heartbeat_us=told_us), 1) is False
    assert observer.look(report(20, heartbeat_us=told_us), 1) is True, "it was stopped for a while"


@pytest.mark.parametrize("ahead_s", [-YEARS, 0, YEARS])
def test_one_that_never_changes_is_dead(ahead_s: int) -> None:
    """As soon as it has been looked at for long enough."""
    observer, dead = Observer(), report(heartbeat_us=NOW_US + ahead_s * 1_000_000)
    looks = [observer.look(dead, 1) for _ in range(100)]
    enough = int(SILENT_S) + 1
    assert looks == [None] * enough + [False] * (100 - enough)


def test_an_observer_that_stands_still_in_its_look_takes_nobody_for_dead() -> None:
    """What it looks at was read before, and the flusher has reported since."""
    observer = Observer()
    assert observer.look(report(1)) is None
    assert observer.look(report(1), 1_000) is None
    assert observer.watch.silent_s == 0, "nor does one that waits for it give up"
    assert observer.look(report(200), 1) is True
    ended = report(flusher="elsewhere:2", doing=ENDED)
    assert observer.look(ended, 1_000) is None
    assert observer.look(report(400), 1) is True


def test_what_is_certain_needs_no_second_look() -> None:
    """No report, the flusher's own word, a process of this host that is gone; until another one reports."""
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    host = socket.gethostname()
    for dead in (None, report(doing=ENDED), report(flusher=f"{host}:{gone.pid}")):
        observer = Observer()
        assert observer.look(dead) is False
        assert observer.look(report(5), 1) is True
    assert Observer().look(report(flusher=f"{host}:{os.getpid()}")) is None


def test_the_end_of_one_says_nothing_of_another() -> None:
    """Two write one report: what the second one writes last hides the first one until its next beat."""
    ended = report(flusher="elsewhere:2", doing=ENDED)
    observer = Observer()
    assert observer.look(report(1)) is None
    assert observer.look(ended, 1) is None
    assert observer.look(report(2), BEAT_BILLED_S) is True
    assert observer.look(ended, 1) is None
    assert observer.look(ended, SILENT_S) is None
    assert observer.look(ended, 1) is False
    assert observer.look(report(flusher="elsewhere:2", doing="resting"), 1) is True
    assert observer.look(ended, 1) is False, "the first one is silent for long"


def test_an_end_hides_also_what_was_reported_while_the_observer_stood_still() -> None:
    """It cannot have seen that the other one is silent, however long ago that reported before."""
    ended = report(flusher="elsewhere:2", doing=ENDED)
    observer = Observer()
    assert observer.look(report(1)) is None
    assert observer.look(ended, 1_000) is None
    assert observer.look(ended, BEAT_BILLED_S) is None
    assert observer.look(report(200), 1) is True


def test_one_look_guesses() -> None:
    """For people: near now, on either side."""
    for age_s, alive in ((0, True), (119, True), (-119, True), (121, False), (-121, False)):
        assert seems_alive(report(), NOW_US + age_s * 1_000_000) is alive
    assert not seems_alive(report(doing=ENDED), NOW_US)
    assert not seems_alive(None, NOW_US)
    assert reported_ago(report(), NOW_US + 5_000_000) == "5 s ago by its host's clock"
    assert "3,600 s ahead" in reported_ago(report(), NOW_US - 3_600_000_000)


# --- the flusher's side ---------------------------------------------------------------------------


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """A log in memory; beats come fifty times as fast."""
    monkeypatch.setattr(reporter, "BEAT_S", 0.1)
    monkeypatch.setattr(reporter, "_LOOK_S", 0.02)
    return Log(open_backend(f"memory://{uuid.uuid4().hex}/log"))


def beats(log: Log, for_s: float) -> set[object]:
    """Return the beats that are seen meanwhile."""
    seen: set[object] = set()
    until_s = time.monotonic() + for_s
    while time.monotonic() < until_s:
        found = log.last_report()
        seen.add(found and found.beat)
        time.sleep(0.01)
    return seen


def beats_until(log: Log, enough: int) -> None:
    """Wait until so many beats are seen; on a busy machine each may be late."""
    seen: set[object] = set()
    until_s = time.monotonic() + 30
    while len(seen) < enough:
        assert time.monotonic() < until_s, f"{len(seen)} beats in 30 s"
        seen |= beats(log, 0.05)


def test_a_flusher_in_a_long_request_goes_on_reporting(log: Log) -> None:
    """And says what it is at; its clock may stand still."""
    it = Reporter(log, lambda: NOW_US)
    with it.beating():
        assert beats(log, 0.3) == {None}, "it has not said anything"
        it.say("writing", 7)
        beats_until(log, 4)
        last = log.last_report()
        assert last is not None
        assert (last.doing, last.flusher) == ("writing epoch 7", this_process())
        it.failed(ConnectionError("down"), wait_s=9)
        beats_until(log, 3)
        last = log.last_report()
        assert last is not None
        assert "the next in 9 s" in last.doing, "it stands there as long as it waits"
    it.ended()
    assert len(beats(log, 0.5)) == 1
    last = log.last_report()
    assert last is not None
    assert last.doing == ENDED


def test_a_flusher_that_hangs_goes_silent(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread says nothing, for longer than any step takes: others are to know."""
    monkeypatch.setattr(reporter, "HUNG_S", 0.5)
    it = Reporter(log)
    with it.beating():
        it.say("writing", 7)
        beats_until(log, 2)
        time.sleep(0.8)
        assert len(beats(log, 0.5)) == 1
        it.say("writing", 8)
        beats_until(log, 2)


def test_a_flusher_that_gives_way_lets_a_living_one_report(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes over a dead one: at once, if its time is an odd one, else as soon as that is known."""
    monkeypatch.setattr("wal_sink.progress.heartbeat.SILENT_S", 0.5)
    guest = Reporter(log, lambda: NOW_US, gives_way=True)
    log.report(report(1, heartbeat_us=NOW_US + YEARS * 1_000_000))
    guest.say("looking", None)
    assert log.last_report() != report(1, heartbeat_us=NOW_US + YEARS * 1_000_000)
    log.report(report(1))
    guest.say("resting", None)
    log.report(report(2))
    with guest.beating():
        assert len(beats(log, 0.3)) == 1
        time.sleep(0.5)
        last = log.last_report()
        assert last is not None
        assert last.flusher == this_process()


def test_two_flushers_of_a_query_are_said(caplog: pytest.LogCaptureFixture) -> None:
    """An overtaken driver may hang and flush on for days: rows are exact, and nothing else would tell."""
    log = Log(open_backend(f"memory://{uuid.uuid4()}"))
    log.report(report(flusher="elsewhere:1"))
    mine = Reporter(log)
    mine.say("starting", None)
    mine.say("looking", None)
    assert not caplog.messages, "who reported before this one may have ended"
    log.report(report(flusher="elsewhere:1", beat=2, doing=ENDED))
    mine = Reporter(log)
    mine.say("starting", None)
    log.report(report(flusher="elsewhere:1", beat=3))
    mine.say("looking", None)
    log.report(report(flusher="elsewhere:1", beat=4))
    mine.say("resting", None)
    (said,) = caplog.messages
    assert "another process flushes this query, too: elsewhere:1" in said
