"""Runs another action right before an operation of a process. `Faults` names the operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from wal_sink.testing.faults import Faults


class At(Faults):
    """Runs an action before the first operation with a name prefix, or before a later one.

    :param number: which of these operations, from 1.
    """

    def __init__(self, name: str, then: Callable[[], object], number: int = 1) -> None:
        super().__init__()
        self._name = name
        self._then = then
        self._left = number

    @contextmanager
    def around(self, name: str) -> Iterator[None]:
        self._left -= (due := name.startswith(self._name))
        if due and not self._left:
            self._then()
        with super().around(name):
            yield
