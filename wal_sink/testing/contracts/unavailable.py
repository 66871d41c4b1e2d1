"""Contract suite for targets that declare `unavailableValue`: an upsert may leave a column unchanged.

An author derives it in place of `DeletesContract`, for a target that can tell whether the table has a row.
Its fixture `target` also sets `unavailableValue=UNAVAILABLE`.
"""

from __future__ import annotations

import random

from wal_sink.model.plan import Plan
from wal_sink.targets.base import Session, Target
from wal_sink.testing.contracts.deletes import Change, DeletesContract
from wal_sink.testing.contracts.ledger import Table, row_of
from wal_sink.testing.contracts.rows import BASE_US, deliver, write_without_refused

UNAVAILABLE = "__debezium_unavailable_value"
"""The value of the option `unavailableValue` in the suite."""


class UnavailableContract(DeletesContract):
    """The suite for targets with option `unavailableValue`, over a table with a key.

    A cell with this value keeps the value that the table has.
    """

    unavailable = UNAVAILABLE

    def draw(self, chance: random.Random, table: Table, text: str) -> Change:
        """Draw a change of one of 16 keys: a delete, or an upsert with nulls and unavailable cells."""
        key = chance.choice("abcd"), chance.randrange(4)
        if chance.random() < 0.2:
            return ("d", *key, None, None)
        is_kept = key in table and chance.random() < 0.6
        t = UNAVAILABLE if is_kept else chance.choice([None, text])
        return ("u", *key, chance.choice([None, *range(9)]), t)

    def test_last_real_value_of_a_window_stays(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """A cell with `UNAVAILABLE` keeps its previous value, also of an earlier slice; a key is text."""
        changes: list[Change] = [
            *(("c", "a", 1, 1, "x"), ("u", "a", 1, 2, UNAVAILABLE)),
            *(("c", "b", 1, 1, "x"), ("u", "b", 1, 2, "y"), ("u", "b", 1, 3, UNAVAILABLE)),
            *(("c", "c", 1, 1, "x"), ("u", "c", 1, 2, None), ("u", "c", 1, 3, UNAVAILABLE)),
            *(("d", "e", 1, 0, None), ("c", "e", 1, 1, "new"), ("u", "e", 1, 2, UNAVAILABLE)),
            ("c", UNAVAILABLE, 1, 1, "z"),
        ]
        old: list[Change] = [("c", k, 1, 0, "old") for k in "abce"]
        for us, parts in ((BASE_US, [changes]), (BASE_US + 10_000, [[row] for row in changes])):
            deliver(session, plan, self.slice(target, plan, old, us))
            written = [
                self.slice(target, plan, part, us + 100 * n) for n, part in enumerate(parts, 1)
            ]
            deliver(session, plan, *written)
            assert self.rows(target) == {
                ("a", 1): (2, "x"),
                ("b", 1): (3, "y"),
                ("c", 1): (3, None),
                ("e", 1): (2, "new"),
                (UNAVAILABLE, 1): (1, "z"),
            }

    def test_new_row_with_unavailable_cell_is_refused(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """A row that the table lacks, or lost by a delete, is named by its timestamp; a retry skips it."""
        deliver(session, plan, self.slice(target, plan, [("c", "b", 1, 1, "x")]))
        changes: list[Change] = [
            ("c", "a", 1, 1, "x"),
            ("u", "new", 1, 2, UNAVAILABLE),
            ("d", "b", 1, None, None),
            ("u", "b", 1, 3, UNAVAILABLE),
            *(("c", "q", 1, 1, "x"), ("d", "q", 1, None, None), ("u", "q", 1, 2, UNAVAILABLE)),
        ]
        rows, current = self.slice(target, plan, changes, BASE_US + 100), row_of(session)
        refused = write_without_refused(target, plan, rows, current)
        assert [us - rows.first_us for us in sorted(refused)] == [1, 3, 6]
        for error in refused.values():
            assert "unavailableValue" in error.what
            assert "whole" in error.remedy
        assert self.rows(target) == {("a", 1): (1, "x")}
