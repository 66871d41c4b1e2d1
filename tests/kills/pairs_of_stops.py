"""Every pair of stops of two processes. Of the pairs with equal histories, one is played.

For a pair (k, j), the first process stops before its k-th operation, the second process runs to its j-th
operation, the first process runs to its end, and then the second one.

(k, j) differs from (k, j - 1) by one step of the second process, which happens before the rest of the first
process or after it. If the step only **reads**, and this rest changes nothing that it reads, both pairs have
one history: each process gets the same answers, and the checker sees the same. The same holds for a read of
the first process in (k - 1, j). Only the clock differs, by microseconds, and decides nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Generic, NamedTuple, TypeVar

from wal_sink.testing.faults import changes

End = TypeVar("End")

Step = list[str]
"""An operation before which a process may stop, and those after it up to the next one (see `Faults`)."""


class History(NamedTuple, Generic[End]):
    """The steps of two processes."""

    first: list[Step]
    second: list[Step]
    end: End
    """The result of the test for this history."""


class Pair(NamedTuple, Generic[End]):
    """A pair of stops."""

    history: History[End]
    is_new: bool
    """True if the pair was played. Otherwise its history is that of an earlier pair."""


def pairs_of_stops(play: Callable[[int, int], History[End]]) -> Iterator[Pair[End]]:
    """Yield all pairs, until each process has run to its end without a stop.

    :param play: plays one pair.
    """
    earlier: list[History[End]] = []
    """Of k - 1, by j."""
    for k in count():
        now: list[History[End]] = []
        for j in count():
            known = _known(k, j, earlier, now)
            now.append(known or play(k, j))
            yield Pair(now[j], known is None)
            if j >= len(now[j].second):
                break
        if k >= len(now[-1].first):
            return
        earlier = now


def _known(
    k: int, j: int, earlier: list[History[End]], now: list[History[End]]
) -> History[End] | None:
    """Return the history of (k, j) if a neighbour has the same one."""
    if j > 0 and sees_nothing_of(now[j - 1].second[j - 1], now[j - 1].first[k:]):
        return now[j - 1]
    if j < len(earlier) and sees_nothing_of(earlier[j].first[k - 1], earlier[j].second[:j]):
        return earlier[j]
    return None


_STORE_CHANGES = ("create ", "replace ", "output ", "delete ")
_LEDGER, _LEDGER_MADE = "read ledger", "create ledger "


def sees_nothing_of(step: Step, others: Iterable[Step]) -> bool:
    """Return True if a step only reads, and reads the same before and after these other steps."""
    if any(changes(operation) for operation in step):
        return False
    return not any(
        _changes_what_sees(look, operation)
        for other in others
        for operation in other
        for look in step
    )


def _changes_what_sees(look: str, other: str) -> bool:
    if not changes(other):
        return False
    of_store = other.startswith(_STORE_CHANGES) and not other.startswith(_LEDGER_MADE)
    if look == _LEDGER:
        return not of_store
    if not of_store:
        return False
    verb, _, place = look.partition(" ")
    _, _, path = other.partition(" ")
    return path.startswith(place) if verb == "list" else path == place
