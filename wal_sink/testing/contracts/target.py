"""Checks a target against what `wal_sink.targets.base` promises: the contract suite of targets.

A plug-in author runs it by giving a fixture and one method::

    class TestMyTarget(TargetContract):
        @pytest.fixture
        def target(self) -> Target:
            ...  # writes to an empty table with the columns of SCHEMA and the key (k, n); nulls unset

        def rows(self, target: Target) -> dict[tuple[str, int], tuple[int | None, str | None]]:
            ...  # read the table by other means: {(k, n): (v, t)}
"""

from __future__ import annotations

import multiprocessing
import pickle
from abc import ABC, abstractmethod
from collections.abc import Sequence

import pyarrow as pa
import pytest

from wal_sink.errors import InvalidRow
from wal_sink.model.ledger import Outcome, Owner
from wal_sink.model.plan import Plan, plan_key
from wal_sink.targets.base import Session, Slice, Target
from wal_sink.testing.contracts.ledger import LedgerContract, begun_window

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int32()), ("v", pa.int64()), ("t", pa.string())])
"""Columns of the table: k text and n int are its key, v is a bigint, t a text."""

Record = tuple[str | None, int | None, int | None, str | None]
Table = dict[tuple[str, int], tuple[int | None, str | None]]

_BASE_US = 1_700_000_000_000_000


class TargetContract(LedgerContract, ABC):
    """Subclass as `Test…` with a fixture `target` and `rows`."""

    @abstractmethod
    def rows(self, target: Target) -> Table:
        """Read the whole table by other means than the target."""

    @pytest.fixture
    def plan(self, target: Target) -> Plan:
        """Return the agreed plan."""
        return target.plan(SCHEMA, plan_key(SCHEMA, target.name, target.shape))

    # --- rows: guarantees 3, 4 and 5; 6 where it is given ---

    def test_rows_are_written(self, target: Target, plan: Plan, session: Session) -> None:
        """Rows arrive under their keys; one without values is a row all the same."""
        records = [("a", 1, 10, "x"), ("a", 2, None, "y"), ("b", 1, None, None)]
        _written(session, plan, _slice(target, plan, records))
        assert self.rows(target) == {
            ("a", 1): (10, "x"),
            ("a", 2): (None, "y"),
            ("b", 1): (None, None),
        }

    def test_writing_again_changes_nothing(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """The same slice, again and after a newer one, leaves the table as it is."""
        old = _slice(target, plan, [("a", 1, 1, "old"), ("b", 1, 1, None)])
        new = _slice(target, plan, [("a", 1, 2, "new")], us=_BASE_US + 100)
        for rows in (old, old, new, old):
            _written(session, plan, rows)
        assert self.rows(target) == {("a", 1): (2, "new"), ("b", 1): (1, None)}

    def test_inside_a_slice_the_last_row_of_a_key_wins(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """Row i has timestamp first + i."""
        records = [("a", 1, value, str(value)) for value in (3, 1, 2)]
        _written(session, plan, _slice(target, plan, records))
        assert self.rows(target) == {("a", 1): (2, "2")}

    def test_at_one_timestamp_the_larger_value_stays(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """Ties are resolved cell by cell on the serialized bytes, where -1 is larger than 1."""
        for records in ([("a", 1, 1, "x")], [("a", 1, -1, "b")], [("a", 1, 7, "a")]):
            _written(session, plan, _slice(target, plan, records))
        assert self.rows(target) == {("a", 1): (-1, "x")}

    def test_unset_nulls_keep_the_older_value(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """Under `nulls=unset` a null leaves the cell alone."""
        _written(session, plan, _slice(target, plan, [("a", 1, 5, "x")]))
        _written(session, plan, _slice(target, plan, [("a", 1, None, "y")], us=_BASE_US + 1))
        assert self.rows(target) == {("a", 1): (5, "y")}

    def test_many_rows_arrive_once(self, target: Target, plan: Plan, session: Session) -> None:
        """What is drained is there: every reader sees all of it."""
        records: list[Record] = [(f"k{i % 37}", i, i * i, str(i)) for i in range(5_000)]
        _written(session, plan, _slice(target, plan, records))
        assert self.rows(target) == {(f"k{i % 37}", i): (i * i, str(i)) for i in range(5_000)}

    def test_rows_of_another_process_count(
        self, target: Target, plan: Plan, session: Session, owner: Owner
    ) -> None:
        """Where `parallel_writes` says so: written elsewhere between `begin` and `finish`, they are there."""
        if not target.parallel_writes:
            return  # it has promised nothing
        window = begun_window(0, rows=2)
        assert session.begin(window) is Outcome.APPLIED
        session.write(plan, _slice(target, plan, [("a", 1, 1, "here")]))
        elsewhere = _slice(target, plan, [("a", 1, 2, "elsewhere")], us=_BASE_US + 1)
        process = multiprocessing.get_context("spawn").Process(
            target=_write_elsewhere, args=(target, owner, plan, elsewhere)
        )
        process.start()
        process.join()
        assert process.exitcode == 0
        assert session.finish(window) is Outcome.APPLIED
        assert self.rows(target) == {("a", 1): (2, "elsewhere")}

    def test_an_empty_slice_is_written(self, target: Target, plan: Plan, session: Session) -> None:
        """A batch without rows is no error."""
        _written(session, plan, _slice(target, plan, []))
        assert self.rows(target) == {}

    def test_many_slices_are_drained_at_once(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """Rows of several calls may be on their way together; after `drain` none is."""
        for i in range(30):
            records: list[Record] = [(f"k{n}", n, i, str(i)) for n in range(50)]
            session.write(plan, _slice(target, plan, records, us=_BASE_US + 50 * i))
        session.drain()
        assert self.rows(target) == {(f"k{n}", n): (29, "29") for n in range(50)}

    def test_there_may_be_nothing_to_drain(self, session: Session) -> None:
        """An epoch without rows, and a second `drain`."""
        session.drain()
        session.drain()

    # --- what travels ---

    def test_a_null_key_is_refused_before_anything_is_published(
        self, target: Target, plan: Plan
    ) -> None:
        """`check` names the column."""
        with pytest.raises(InvalidRow, match="n"):
            _slice(target, plan, [("a", 1, 1, "x"), ("a", None, 1, "x")])

    def test_the_plan_travels(self, plan: Plan) -> None:
        """A plan pickles, and survives the log."""
        assert pickle.loads(pickle.dumps(plan)) == plan  # noqa: S301 - our own bytes
        assert Plan.from_json(plan.to_json(), "plan") == plan

    def test_an_unknown_error_is_fatal(self, target: Target) -> None:
        """An unknown error stops the flush; it is never retried in silence."""
        assert target.classify(ValueError("never seen")) == "fatal"


def _write_elsewhere(target: Target, owner: Owner, plan: Plan, rows: Slice) -> None:
    with target.connect(owner) as session:
        _written(session, plan, rows)


def _written(session: Session, plan: Plan, rows: Slice) -> None:
    session.write(plan, rows)
    session.drain()


def _slice(target: Target, plan: Plan, records: Sequence[Record], us: int = _BASE_US) -> Slice:
    columns = list(zip(*records, strict=True)) or [()] * len(SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return Slice(0, target.check(pa.record_batch(arrays, schema=SCHEMA), plan), us)
