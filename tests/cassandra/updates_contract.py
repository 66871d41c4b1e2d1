"""Checks a target that updates rows: a part of the contract suite for `cassandra.writeMode` = `update`.

Derive `UpdatesContract` with a fixture `target` whose rows are updated, into an empty table with the columns
of `contracts.rows` and the key (k, n), where nulls are unset; and with `rows`.
"""

from __future__ import annotations

from collections.abc import Sequence

from wal_sink.model.plan import Plan, plan_key
from wal_sink.targets.base import RowSlice, Target
from wal_sink.testing.contracts.cells import write
from wal_sink.testing.contracts.ledger import Suite, create, new_query
from wal_sink.testing.contracts.rows import BASE_US, SCHEMA, Record, deliver, frame


class UpdatesContract(Suite):
    """Subclass as `Test…` with a fixture `target`, and `rows`: a row exists while a value does."""

    def test_row_exists_by_its_values(self, target: Target) -> None:
        """One without any does not; others keep what they have, however often and late it comes."""
        plan = target.plan(SCHEMA, plan_key(SCHEMA, target.name, target.shape))
        first = self.slice(target, plan, [("a", 1, 10, None), ("b", 1, None, None)], BASE_US)
        later = self.slice(target, plan, [("a", 1, None, "x"), ("c", 2, 3, "y")], BASE_US + 10)
        newest = self.slice(target, plan, [("c", 2, 4, None)], BASE_US + 20)
        query_id = new_query()
        with target.connect(query_id) as session:
            create(session, query_id)
            deliver(session, plan, first, later, newest)
            for _ in range(2):
                assert self.rows(target) == {("a", 1): (10, "x"), ("c", 2): (4, "y")}
                for rows in (newest, first, later):
                    write(session, plan, rows)

    def slice(self, target: Target, plan: Plan, records: Sequence[Record], us: int) -> RowSlice:
        """Make a slice as a task does: checked rows."""
        return RowSlice(0, target.check(frame(records), plan), us)
