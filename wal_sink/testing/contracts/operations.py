"""Contract suites for targets that declare the option `operationColumn`, also with `unavailableValue`.

The author of a target derives a test class from one of these suites and from the suite of the session. The
fixture `target` sets `operationColumn=COLUMN` and `operations=OPERATIONS`, and leaves an option such as
`nulls` at `unset`. The table is empty, and has the columns of `rows.WITH_DOUBLE` and the key (k, n).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pyarrow as pa
import pytest

from wal_sink.errors import InvalidRow, SchemaMismatch
from wal_sink.model.ledger import Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.base import IdempotentSession, RowSlice, Session, Target
from wal_sink.testing.contracts.ledger import (
    Suite,
    Table,
    finish,
    following,
    row_of,
    tolerate_retried_errors,
)
from wal_sink.testing.contracts.rows import (
    BASE_US,
    SCHEMA,
    agreed,
    arrow_batch,
    deliver,
    write_without_refused,
)
from wal_sink.testing.contracts.sessions import write

COLUMN = "op"
OPERATIONS = '{"c": "upsert", "u": "upsert", "d": "delete"}'
"""The value of the option `operations` in the suites."""
UNAVAILABLE = "__debezium_unavailable_value"
"""The value of the option `unavailableValue` in `UnavailableContract`."""

Change = tuple[str | None, str | None, int | None, int | None, str | None]
"""A row of a change stream: the word of the operation, then k, n, v and t."""

FIELDS = pa.schema([(COLUMN, pa.string()), *SCHEMA])


class DeletesContract(Suite):
    """The suite for targets with the option `operationColumn`.

    The windows of a test do not overlap, so the suite fits every kind of session.
    """

    @pytest.fixture
    def plan(self, target: Target) -> Plan:
        """Return the plan of a DataFrame with the columns of `FIELDS`."""
        return agreed(target, FIELDS)

    def slice(
        self, target: Target, plan: Plan, changes: Sequence[Change], us: int = BASE_US
    ) -> RowSlice:
        """Check changes as a task does, and return them as a slice.

        :param us: the write timestamp of the first change, in microseconds.
        """
        return RowSlice(0, target.check(arrow_batch(changes, FIELDS), plan), us)

    def test_last_operation_of_a_key_in_a_slice_wins(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """A row that is inserted after its delete has no cell of the deleted row."""
        changes: list[Change] = [
            *(("c", "a", 1, 1, "x"), ("d", "a", 1, None, None)),
            *(("d", "b", 1, None, None), ("c", "b", 1, 2, "y")),
            *(("c", "c", 1, 3, "z"), ("d", "c", 1, None, None), ("u", "c", 1, None, "again")),
            *(("d", "e", 1, None, None), ("c", "e", 1, 4, "w"), ("d", "e", 1, None, None)),
        ]
        deliver(session, plan, self.slice(target, plan, changes))
        assert self.rows(target) == {("b", 1): (2, "y"), ("c", 1): (None, "again")}

    unavailable: str | None = None
    """The text that leaves a cell unchanged; None if the target has no such text."""

    def draw(self, chance: random.Random, table: Table, text: str) -> Change:  # noqa: ARG002 -- a suite uses it
        """Draw a change of one of 24 keys; an upsert has all values, a delete may have some.

        :param table: the rows before the change.
        """
        key = chance.choice("abcd"), chance.randrange(6)
        if chance.random() < 0.4:
            return ("d", *key, None, None) if chance.random() < 0.5 else ("d", *key, 9, "w")
        return (chance.choice("cu"), *key, chance.randrange(100), text)

    def test_random_changes_equal_those_of_a_dictionary(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """One key has several changes in a slice, in a window, and in several windows."""
        chance = random.Random(16)  # noqa: S311 -- no secret
        expected: Table = {}
        slices = []
        for number in range(10):
            changes = list[Change]()
            for i in range(60):
                word, k, n, v, t = self.draw(chance, expected, f"{number}/{i}")
                changes.append((word, k, n, v, t))
                key = str(k), int(n or 0)
                if word == "d":
                    expected.pop(key, None)
                else:
                    is_kept = t is not None and t == self.unavailable
                    expected[key] = v, expected[key][1] if is_kept else t
            slices.append(self.slice(target, plan, changes, us=BASE_US + 60 * number))
        deliver(session, plan, *slices[:7])
        for rows in slices[7:]:
            deliver(session, plan, rows)
        assert 0 < len(expected) < 25
        assert self.rows(target) == expected

    def test_delete_has_effect_only_with_its_window(
        self, target: Target, plan: Plan, session: Session, query_id: str
    ) -> None:
        """A flusher that dies before `finish` deletes no row. A stalled flusher deletes no newer row."""
        deliver(session, plan, self.slice(target, plan, [("c", "a", 1, 1, "x")]))
        current = row_of(session)
        deletes = self.slice(target, plan, [("d", "a", 1, None, None)], us=BASE_US + 100)
        with target.connect(query_id) as dies:
            dies.read()
            dies.write(plan, deletes)
        if not isinstance(session, IdempotentSession):
            assert self.rows(target) == {("a", 1): (1, "x")}
        with target.connect(query_id) as other:
            deliver(other, plan, deletes)
            assert self.rows(target) == {}
            again = self.slice(target, plan, [("c", "a", 1, 2, "again")], us=BASE_US + 200)
            deliver(other, plan, again)
        with target.connect(query_id) as late, tolerate_retried_errors(target):
            late.read()
            late.write(plan, deletes)
            assert finish(late, current, following(current)) is Outcome.CONFLICT
        assert self.rows(target) == {("a", 1): (2, "again")}

    def test_invalid_change_is_refused_by_check(self, target: Target, plan: Plan) -> None:
        """An unknown word, and a null in a key, are neither upserted nor dropped silently."""
        for word in ("x", "D", "delete", "", None):
            with pytest.raises(InvalidRow, match="is not an operation") as caught:
                self.slice(target, plan, [("c", "a", 1, 1, "x"), (word, "a", 1, 1, "x")])
            assert "operations" in caught.value.remedy
        for changes in (
            [("u", "a", None, 1, "x")],
            [("u", None, 1, 1, "x")],
            [("d", None, 1, 1, "x")],
        ):
            with pytest.raises(InvalidRow, match="null"):
                self.slice(target, plan, changes)

    def test_dataframe_without_operation_column_is_refused(self, target: Target) -> None:
        with pytest.raises(SchemaMismatch, match="no such column") as caught:
            target.plan(SCHEMA, "another")
        assert caught.value.remedy


class CellDeletesContract(DeletesContract):
    """The suite of deletes for a session in which each delete and each cell has a write timestamp."""

    def test_repeated_and_late_deletes_keep_newer_rows(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """Upserts and deletes are written in any order, several times. The highest timestamp wins."""
        old = self.slice(target, plan, [("c", "a", 1, 1, "old"), ("c", "b", 1, 1, "old")])
        deletes = self.slice(
            target, plan, [("d", "a", 1, None, None), ("d", "b", 1, None, None)], us=BASE_US + 100
        )
        new = self.slice(target, plan, [("u", "b", 1, None, "new")], us=BASE_US + 200)
        chance = random.Random(5)  # noqa: S311 -- no secret
        for _ in range(3):
            for rows in chance.sample([old, deletes, new], 3):
                write(session, plan, rows)
            write(session, plan, rows)
        assert self.rows(target) == {("b", 1): (None, "new")}


class UnavailableContract(DeletesContract):
    """The suite for targets with the option `unavailableValue`, in place of `DeletesContract`.

    The fixture `target` also sets `unavailableValue=UNAVAILABLE`. A change with this text in a cell keeps
    the value of the cell.
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

    def test_unavailable_cell_keeps_the_last_value(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """A cell with `UNAVAILABLE` keeps its value, also from an earlier slice. A key may be this text."""
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
        """`RowsRefused` names the changes of rows that do not exist. A retry without them succeeds."""
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
