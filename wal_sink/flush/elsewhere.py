"""Stands where a flush loop would, for a query that another process flushes."""

from __future__ import annotations


class Elsewhere:
    """Does nothing: what another process does is seen in the log, and not hurried from here."""

    def start(self) -> None:
        """See `FlushLoop`."""

    def wake(self) -> None:
        """See `FlushLoop`."""

    def hurry(self) -> None:
        """See `FlushLoop`."""

    def end(self) -> None:
        """See `FlushLoop`."""

    def stop(self) -> None:
        """See `FlushLoop`."""

    def join(self, timeout: float | None = None) -> None:
        """See `FlushLoop`."""

    def is_alive(self) -> bool:
        """Return that nothing runs."""
        return False
