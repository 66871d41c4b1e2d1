"""The patience of a command that looks whether a flusher is alive, without waiting for real."""

from __future__ import annotations

from collections.abc import Callable

from wal_sink.admin.flusher_at_work import Patience
from wal_sink.admin.query import Query


class Looks:
    """Counts a command's looks; between two of them a second passes.

    :param meanwhile: what happens between two looks.
    """

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self._meanwhile = meanwhile
        self.number = 0
        self.now_s = 0.0
        self.said: list[str] = []

    @property
    def patience(self) -> Patience:
        """What the command is given."""
        return Patience(lambda: self.now_s, self._sleep, self.said.append)

    def by(self, query: Query) -> Query:
        """Return the query for such a command."""
        return query._replace(patience=self.patience)

    def _sleep(self, seconds: float) -> None:
        self.number += 1
        self.now_s += seconds
        assert self.number < 1_000, "it looks for ever"
        self._meanwhile()
