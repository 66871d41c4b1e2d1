"""Keeps the sessions of a Python worker from task to task: connecting costs more than a small share.

Spark runs one task after another in a Python worker. The pool closes a session that no task has asked for in
a while; when Spark kills a worker that is idle for a minute, the operating system closes what is left.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
from collections.abc import Callable, Hashable, Iterator

from wal_sink.targets.base import Session

logger = logging.getLogger(__name__)

IDLE_S = 20.0
"""Less than the minute after which Spark ends an idle worker."""


class SessionPool:
    """Keeps sessions that are not in use, one for each key; used by any number of threads.

    :param idle_s: seconds after which a session that no task takes is closed.
    """

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._idle: dict[Hashable, tuple[Session, threading.Timer]] = {}

    @contextlib.contextmanager
    def session(self, key: Hashable, connect: Callable[[], Session]) -> Iterator[Session]:
        """Lend the session kept under `key`, or a new one; keep it afterwards, unless the block failed."""
        session = self._take(key) or connect()
        try:
            yield session
        except BaseException:
            _close(session)
            raise
        self._keep(key, session)

    def close(self) -> None:
        """Close what is kept."""
        for key in list(self._idle):
            self._drop(key)

    def _take(self, key: Hashable) -> Session | None:
        with self._lock:
            session, timer = self._idle.pop(key, (None, None))
        if timer is not None:
            timer.cancel()
        return session

    def _keep(self, key: Hashable, session: Session) -> None:
        self._drop(key)  # of another thread
        timer = threading.Timer(self._idle_s, self._drop, (key, session))
        timer.daemon = True
        with self._lock:
            self._idle[key] = session, timer
        timer.start()
        # Exit handlers run last first: this one comes before the driver's, which closes connections.
        atexit.unregister(self.close)
        atexit.register(self.close)

    def _drop(self, key: Hashable, only: Session | None = None) -> None:
        with self._lock:
            kept, timer = self._idle.get(key, (None, None))
            if kept is None or timer is None or (only is not None and kept is not only):
                return  # it was taken meanwhile
            del self._idle[key]
        timer.cancel()
        _close(kept)


def _close(session: Session) -> None:
    try:
        session.close()
    except Exception:
        logger.warning("a task's session could not be closed in order", exc_info=True)


SESSIONS = SessionPool()
"""Those of a Python worker."""
