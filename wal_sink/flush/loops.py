"""The loops of one query: one for each target; none where another process flushes the query."""

from __future__ import annotations

import time
from collections.abc import Sequence

from wal_sink.flush.loop import FlushLoop


class FlushLoops:
    """The threads that flush one query, told the same together. Targets wait for no other.

    :param loops: one for each target.
    """

    def __init__(self, loops: Sequence[FlushLoop] = ()) -> None:
        self._loops = tuple(loops)

    def start(self) -> None:
        """Start every thread."""
        for loop in self._loops:
            loop.start()

    def wake(self) -> None:
        """See `FlushLoop.wake`; so for the others."""
        for loop in self._loops:
            loop.wake()

    def hurry(self) -> None:
        """Try now."""
        for loop in self._loops:
            loop.hurry()

    def end(self) -> None:
        """Finish what is checkpointed, then end."""
        for loop in self._loops:
            loop.end()

    def stop(self) -> None:
        """End after the steps under way."""
        for loop in self._loops:
            loop.stop()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of every thread, for so many seconds together."""
        until_s = None if timeout is None else time.monotonic() + timeout
        for loop in self._loops:
            loop.join(None if until_s is None else max(0.0, until_s - time.monotonic()))

    def is_alive(self) -> bool:
        """Whether a thread runs."""
        return any(loop.is_alive() for loop in self._loops)
