"""Operations of a process as `Faults` names them: which change something, what happens before one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from wal_sink.testing.faults import Faults

LOOKS = ("read ", "list ", "size ", "input ")
"""In checkpoint, log and ledger."""
TOLD = "event "
"""What Spark tells this process, and only its memory has."""


def changes(operation: str) -> bool:
    """Whether something may lie in the stores that did not before: else dying now is dying earlier."""
    return not operation.startswith((*LOOKS, TOLD))


def different_faults(operations: Sequence[str], when: str) -> list[int]:
    """Return the operations at which a fault may leave what none at an earlier one leaves.

    :param when: `before` or `after`: the process dies; `answer lost`: it lives on, and each is different.
    """
    if when == "answer lost":
        return list(range(len(operations)))
    last_done = operations if when == "after" else ["", *operations]
    return [k for k in range(len(operations)) if k == 0 or changes(last_done[k])]


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
