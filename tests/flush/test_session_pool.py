"""Sessions that are left to the next task of a process."""

from __future__ import annotations

import threading
import time

import pytest

from wal_sink.flush.tasks import SessionPool
from wal_sink.testing.memory_target import MemoryOptions, MemorySession, MemoryTarget


class Counted(MemorySession):
    """A session that says how often it was closed."""

    def __init__(self) -> None:
        super().__init__(MemoryTarget(MemoryOptions(keys="k")), "query")
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


def refuse() -> Counted:
    raise AssertionError("there is a session to be had")


def test_a_session_is_used_again() -> None:
    """Under its key, and under no other."""
    sessions = SessionPool()
    with sessions.session("a", Counted) as first:
        pass
    with sessions.session("a", refuse) as again:
        assert again is first
        with sessions.session("a", Counted) as other:
            assert other is not first, "one that is in use is not handed out again"
    with sessions.session("b", Counted) as third:
        assert third is not first
    sessions.close()


def test_after_an_error_it_is_not() -> None:
    """The next try connects again."""
    sessions = SessionPool()
    with pytest.raises(KeyError), sessions.session("a", Counted) as failed:
        raise KeyError
    assert isinstance(failed, Counted)
    assert failed.closed.is_set()
    with sessions.session("a", Counted) as fresh:
        assert fresh is not failed
    sessions.close()


def test_an_idle_one_is_closed() -> None:
    """Cassandra is not left with connections of workers that have nothing to do."""
    sessions = SessionPool(idle_s=0.05)
    with sessions.session("a", Counted) as idle:
        time.sleep(0.1)
        assert isinstance(idle, Counted)
        assert not idle.closed.is_set(), "in use is not idle"
    assert idle.closed.wait(10)
    with sessions.session("a", Counted) as fresh:
        assert fresh is not idle


def test_all_are_closed_at_the_end() -> None:
    """And no timer keeps the process."""
    sessions = SessionPool()
    with sessions.session("a", Counted) as one, sessions.session("b", Counted) as two:
        pass
    sessions.close()
    assert isinstance(one, Counted)
    assert isinstance(two, Counted)
    assert one.closed.is_set()
    assert two.closed.is_set()
