"""Sessions that stay open for the next task of a worker."""

from __future__ import annotations

import pytest

from wal_sink.flush.tasks import SessionPool
from wal_sink.targets.base import Session
from wal_sink.testing.memory_target import MemoryOptions, MemorySession, MemoryTarget


class Counted(MemorySession):
    """A session that records whether it was closed."""

    def __init__(self) -> None:
        super().__init__(MemoryTarget(MemoryOptions(keys="k")), "query")
        self.closed = False

    def close(self) -> None:
        self.closed = True


def is_closed(session: Session) -> bool:
    assert isinstance(session, Counted)
    return session.closed


def refuse() -> Counted:
    raise AssertionError("there is a session to be had")


def test_session_is_used_again() -> None:
    sessions = SessionPool()
    with sessions.session("a", 1, Counted) as first:
        pass
    with sessions.session("b", 1, Counted) as other:
        assert other is not first
    with sessions.session("a", 1, refuse) as again:
        assert again is first
    with sessions.session("a", 2, Counted) as fresh:
        assert fresh is not first
    assert [is_closed(session) for session in (first, other, fresh)] == [True, False, False]
    sessions.close()
    assert is_closed(other)
    assert is_closed(fresh)


def test_session_is_not_reused_after_an_error() -> None:
    sessions = SessionPool()
    with pytest.raises(KeyError), sessions.session("a", 1, Counted) as failed:
        raise KeyError
    assert is_closed(failed)
    with sessions.session("a", 1, Counted) as fresh:
        assert fresh is not failed
    sessions.close()
