"""Does something else right before an operation of a process, as `Faults` names it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from wal_sink.testing.faults import Faults


class At(Faults):
    """Does something right before the first operation of a name, or a later one."""

    def __init__(self, name: str, then: Callable[[], object], number: int = 1) -> None:
        super().__init__()
        self._name = name
        self._then = then
        self._left = number

    @contextmanager
    def around(self, name: str) -> Iterator[None]:
        """See `Faults`."""
        self._left -= (due := name.startswith(self._name))
        if due and not self._left:
            self._then()
        with super().around(name):
            yield
