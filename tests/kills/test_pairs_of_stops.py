"""A pair of stops that is not played has the history of a pair that is."""

from __future__ import annotations

import random
from functools import partial

from tests.kills.pairs_of_stops import History, pairs_of_stops

Answer = object


class Toy:
    """Objects and a ledger. A process is a list of operations, with the answers that it got."""

    def __init__(self, scripts: tuple[list[str], list[str]]) -> None:
        self._scripts = scripts
        self._objects: dict[str, int] = {}
        self._ledger = 0
        self.done: tuple[list[str], list[str]] = ([], [])
        self.answers: tuple[list[Answer], list[Answer]] = ([], [])

    def go_on(self, which: int, stop: int | None = None) -> None:
        """Let a process run to its end, or until it has done this number of operations."""
        script, done = self._scripts[which], self.done[which]
        while len(done) < len(script) and (stop is None or len(done) < stop):
            done.append(script[len(done)])
            self.answers[which].append(self._answer(done[-1], which))

    def _answer(self, operation: str, which: int) -> Answer:
        verb, _, place = operation.partition(" ")
        if verb == "finish":
            self._ledger = 10 * self._ledger + which + 1
        elif operation == "read ledger":
            return self._ledger
        elif verb == "list":
            return sorted(path for path in self._objects if path.startswith(place))
        elif verb == "read":
            return self._objects.get(place)
        elif verb == "create":
            return self._objects.setdefault(place, which) == which
        elif verb == "delete":
            self._objects.pop(place, None)
        return None


def played(scripts: tuple[list[str], list[str]], k: int, j: int) -> History[object]:
    toy = Toy(scripts)
    for which, stop in ((0, k), (1, j), (0, None), (1, None)):
        toy.go_on(which, stop)
    first, second = ([[operation] for operation in done] for done in toy.done)
    return History(first, second, end=(toy.answers, toy._objects, toy._ledger))


OPERATIONS = (
    *("read a/1", "read a/2", "list a/", "list b/", "list ", "read ledger"),
    *("create a/1", "create a/2", "create b/1", "delete a/1", "finish 0"),
)


def test_pair_left_out_ends_as_if_it_were_played() -> None:
    """Each process gets the same answers, and some pairs are left out."""
    for seed in range(40):
        chance = random.Random(seed)
        scripts = (chance.choices(OPERATIONS, k=8), chance.choices(OPERATIONS, k=8))
        pairs = list(pairs_of_stops(partial(played, scripts)))
        whole = [played(scripts, k, j) for k in range(9) for j in range(9)]
        assert [pair.history for pair in pairs] == whole, seed
        assert 0 < sum(pair.is_new for pair in pairs) < len(whole), seed
