"""The contract suite of targets: what `wal_sink.targets.base` promises, as tests.

A plug-in author runs it by giving a fixture and one method::

    class TestMyTarget(TargetContract):
        @pytest.fixture
        def target(self) -> Target:
            ...  # writes to an empty table with the columns of SCHEMA and the key (k, n); nulls unset

        def rows(self, target: Target) -> dict[tuple[str, int], tuple[int | None, str | None]]:
            ...  # read the table by other means: {(k, n): (v, t)}
"""

from __future__ import annotations

import pickle
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from wal_sink.errors import InvalidRow
from wal_sink.targets.base import (
    BegunEpoch,
    Outcome,
    Owner,
    Plan,
    Session,
    Slice,
    Target,
    Window,
    plan_key,
)

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int32()), ("v", pa.int64()), ("t", pa.string())])
"""Columns of the table: k text and n int are its key, v is a bigint, t a text."""

Record = tuple[str | None, int | None, int | None, str | None]
Table = dict[tuple[str, int], tuple[int | None, str | None]]

_BASE_US = 1_700_000_000_000_000
_RACERS = 6


class TargetContract(ABC):
    """Subclass as `Test…` with a fixture `target` and `rows`."""

    @abstractmethod
    def rows(self, target: Target) -> Table:
        """Read the whole table by other means than the target."""

    @pytest.fixture
    def plan(self, target: Target) -> Plan:
        """Return the agreed plan."""
        return target.plan(SCHEMA, plan_key(SCHEMA, target.name, target.shape))

    @pytest.fixture
    def owner(self) -> Owner:
        """Return the owner of a ledger row that no other test uses."""
        return Owner(str(uuid.uuid4()), uuid.uuid4().hex, "file:///checkpoint")

    @pytest.fixture
    def session(self, target: Target, plan: Plan, owner: Owner) -> Iterator[Session]:
        """Connect, with the ledger row of a query that starts at epoch 0."""
        assert plan.target == target.name
        with target.connect(owner) as session:
            session.create(-1)
            yield session

    # --- the ledger: guarantees 1 and 2 ---

    @pytest.mark.usefixtures("plan")
    def test_the_ledger_row_is_created_once(self, target: Target, owner: Owner) -> None:
        """A query that the target does not know has no mark; the first `create` makes it."""
        with target.connect(owner) as session:
            assert session.flushed() is None
            session.create(6)
            session.create(41)
            mark = session.flushed()
        assert mark is not None
        assert (mark.flushed, mark.last_us, mark.begun, mark.last) == (6, 0, None, None)
        assert (mark.log_id, mark.checkpoint) == (owner.log_id, owner.checkpoint)

    def test_begin_and_finish_move_the_mark(self, session: Session) -> None:
        """`begin` stores the window, `finish` makes it the last one and moves `flushed` and `last_us`."""
        window = _window(0, rows=10)
        assert session.begin(window) is Outcome.APPLIED
        begun = session.flushed()
        assert begun is not None
        assert (begun.flushed, begun.begun) == (-1, window)
        assert session.finish(window) is Outcome.APPLIED
        mark = session.flushed()
        assert mark is not None
        assert (mark.flushed, mark.last_us, mark.begun, mark.last) == (
            0,
            _BASE_US + 9,
            None,
            window,
        )

    def test_begin_is_refused_while_something_is_begun(self, session: Session) -> None:
        """Whoever comes second finishes what is begun; it cannot begin something else."""
        assert session.begin(first := _window(0)) is Outcome.APPLIED
        assert session.begin(_window(0)) is Outcome.REFUSED
        mark = session.flushed()
        assert mark is not None
        assert mark.begun == first

    @pytest.mark.parametrize("epoch", [1, 5])
    def test_begin_is_refused_behind_a_gap(self, session: Session, epoch: int) -> None:
        """Only `flushed + 1` can be begun: the mark never jumps over an epoch."""
        assert session.begin(_window(epoch)) is Outcome.REFUSED

    def test_begin_is_refused_for_what_is_flushed(self, session: Session) -> None:
        """A flushed epoch is not begun again."""
        session.begin(window := _window(0))
        session.finish(window)
        assert session.begin(_window(0)) is Outcome.REFUSED

    def test_finish_is_refused_for_another_window(self, session: Session) -> None:
        """Only who knows exactly what is begun can finish it."""
        assert session.finish(_window(0)) is Outcome.REFUSED
        session.begin(window := _window(0))
        assert session.finish(_window(0)) is Outcome.REFUSED
        assert session.finish(window) is Outcome.APPLIED
        assert session.finish(window) is Outcome.REFUSED

    @pytest.mark.usefixtures("plan")
    def test_without_a_row_nothing_is_applied(self, target: Target, owner: Owner) -> None:
        """A lost ledger row is not made anew by `begin` or `finish`."""
        with target.connect(owner) as session:
            assert session.begin(_window(0)) is Outcome.REFUSED
            assert session.finish(_window(0)) is Outcome.REFUSED
            assert session.flushed() is None

    def test_of_many_beginners_one_wins(
        self, target: Target, session: Session, owner: Owner
    ) -> None:
        """`begin` takes effect at most once, whoever races; the ledger holds the winner's window."""
        for epoch in range(3):
            windows = [_window(epoch) for _ in range(_RACERS)]
            with ThreadPoolExecutor(_RACERS) as pool:
                outcomes = list(pool.map(lambda w: _begin_alone(target, owner, w), windows))
            assert outcomes.count(Outcome.APPLIED) <= 1
            mark = session.flushed()
            assert mark is not None
            assert mark.begun in windows
            for window, outcome in zip(windows, outcomes, strict=True):
                if outcome is not Outcome.UNKNOWN:
                    assert (outcome is Outcome.APPLIED) == (window == mark.begun)
            assert session.finish(mark.begun) is Outcome.APPLIED

    def test_queries_do_not_share_a_mark(self, target: Target, session: Session) -> None:
        """Each query has a ledger row of its own."""
        session.begin(_window(0))
        with target.connect(Owner(str(uuid.uuid4()), "other", "file:///other")) as other:
            assert other.flushed() is None

    def test_a_second_session_sees_the_mark(
        self, target: Target, session: Session, owner: Owner
    ) -> None:
        """`flushed` is linearizable over sessions."""
        session.begin(window := _window(0))
        with target.connect(owner) as other:
            mark = other.flushed()
            assert mark is not None
            assert mark.begun == window
            assert other.finish(window) is Outcome.APPLIED
        mark = session.flushed()
        assert mark is not None
        assert mark.flushed == 0

    # --- rows: guarantees 3, 4 and 5 ---

    def test_rows_are_written(self, target: Target, plan: Plan, session: Session) -> None:
        """Rows arrive under their keys; one without values is a row all the same."""
        records = [("a", 1, 10, "x"), ("a", 2, None, "y"), ("b", 1, None, None)]
        session.write(plan, _slice(target, plan, records))
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
            session.write(plan, rows)
        assert self.rows(target) == {("a", 1): (2, "new"), ("b", 1): (1, None)}

    def test_inside_a_slice_the_last_row_of_a_key_wins(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """Row i has timestamp first + i."""
        records = [("a", 1, value, str(value)) for value in (3, 1, 2)]
        session.write(plan, _slice(target, plan, records))
        assert self.rows(target) == {("a", 1): (2, "2")}

    def test_at_one_timestamp_the_larger_value_stays(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """Ties are resolved cell by cell on the serialized bytes, where -1 is larger than 1."""
        for records in ([("a", 1, 1, "x")], [("a", 1, -1, "b")], [("a", 1, 7, "a")]):
            session.write(plan, _slice(target, plan, records))
        assert self.rows(target) == {("a", 1): (-1, "x")}

    def test_unset_nulls_keep_the_older_value(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """Under `nulls=unset` a null leaves the cell alone."""
        session.write(plan, _slice(target, plan, [("a", 1, 5, "x")]))
        session.write(plan, _slice(target, plan, [("a", 1, None, "y")], us=_BASE_US + 1))
        assert self.rows(target) == {("a", 1): (5, "y")}

    def test_many_rows_arrive_once(self, target: Target, plan: Plan, session: Session) -> None:
        """What `write` has returned from is there: all of it, for another session."""
        records: list[Record] = [(f"k{i % 37}", i, i * i, str(i)) for i in range(5_000)]
        session.write(plan, _slice(target, plan, records))
        assert self.rows(target) == {(f"k{i % 37}", i): (i * i, str(i)) for i in range(5_000)}

    def test_an_empty_slice_is_written(self, target: Target, plan: Plan, session: Session) -> None:
        """A batch without rows is no error."""
        session.write(plan, _slice(target, plan, []))
        assert self.rows(target) == {}

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
        """What nobody knows stops the line; it is never retried in silence."""
        assert target.classify(ValueError("never seen")) == "fatal"


def _window(epoch: int, rows: int = 1) -> Window:
    begun = BegunEpoch(
        epoch=epoch,
        generation=1,
        manifest=f"manifests/{epoch}",
        digest="d",
        offsets_digest="o",
        base_us=_BASE_US + epoch * 1_000,
        rows=rows,
        bytes=rows * 10,
        published_us=_BASE_US,
    )
    return Window(nonce=uuid.uuid4().hex, begun_us=_BASE_US, epochs=(begun,))


def _slice(target: Target, plan: Plan, records: Sequence[Record], us: int = _BASE_US) -> Slice:
    columns = list(zip(*records, strict=True)) or [()] * len(SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return Slice(0, target.check(pa.record_batch(arrays, schema=SCHEMA), plan), us)


def _begin_alone(target: Target, owner: Owner, window: Window) -> Outcome:
    with target.connect(owner) as session:
        return session.begin(window)
