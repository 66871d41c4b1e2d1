"""Contract suite for a target whose session raises `RowsRefused` for rows that only the server refuses.

The author of a target derives a test class from this suite and from the suite of the session::

    class TestMyTarget(RefusalsContract, TransactionalContract):
        def refuse_long(self, target: Target) -> None: ...  # make the server refuse `long_text`

        def accept_long(self, target: Target) -> None: ...  # make the server accept `long_text` again
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest

from wal_sink.errors import TargetRefused
from wal_sink.model.plan import Plan
from wal_sink.targets.base import RowSlice, Session, Target
from wal_sink.testing.contracts.kills import KillsContract, PlayedKills
from wal_sink.testing.contracts.ledger import Table, row_of
from wal_sink.testing.contracts.rows import BASE_US, Record, write_all, write_without_refused
from wal_sink.testing.faults import Crash, Faults, different_faults
from wal_sink.testing.micro_batches import Rows


class RefusalsContract(KillsContract):
    """The suite for rows that only the server refuses."""

    long_text = "x" * 5_000
    """The text of the rows that the server refuses."""

    @abstractmethod
    def refuse_long(self, target: Target) -> None:
        """Make the server refuse rows with `long_text`, which tasks accept."""

    @abstractmethod
    def accept_long(self, target: Target) -> None:
        """Make the server accept rows with `long_text` again."""

    def long_slice(self, target: Target, plan: Plan, size: int, refused: Sequence[int]) -> RowSlice:
        """Return rows 0 to `size - 1`. Tasks accept all of them; the server refuses the rows in `refused`."""
        texts = [self.long_text if n in refused else "short" for n in range(size)]
        rows = self.slice(target, plan, [(f"k{n}", n, n, text) for n, text in enumerate(texts)])
        self.refuse_long(target)
        return rows

    @pytest.mark.parametrize("refused", [(0, 1, 5), range(7)])
    def test_refused_rows_are_named(
        self, target: Target, plan: Plan, session: Session, refused: Sequence[int]
    ) -> None:
        """`RowsRefused` names only refused rows, and a retry without them writes the others."""
        current, rows = row_of(session), self.long_slice(target, plan, 7, refused)
        session.close()  # a new session, since the old session may have cached the table's schema
        named = write_without_refused(target, plan, rows, current)
        assert sorted(named) == [BASE_US + n for n in refused]
        assert all(error.what and error.remedy for error in named.values())
        assert {k for k, _ in self.rows(target)} == {f"k{n}" for n in range(7) if n not in refused}

    def test_window_with_only_refused_rows_stops_the_flush(
        self, target: Target, plan: Plan, session: Session, query_id: str
    ) -> None:
        """The server refuses all of 300 rows. The flush stops with an error, and skips no row."""
        current, size = row_of(session), 300
        rows = self.long_slice(target, plan, size, range(size))
        session.close()
        with target.connect(query_id) as other:
            assert other.read() == current
            with pytest.raises(TargetRefused):
                write_all(other, [(plan, rows)], current)
        with target.connect(query_id) as other:
            assert other.read() == current
        assert self.rows(target) == {}

    def test_flusher_that_dies_at_refused_rows_loses_nothing(self, target: Target) -> None:
        """With quarantine, each row is in the table or in `refused/`, never in both."""
        self.play_all(
            lambda: _Refused(target, self.frame, self),
            lambda at: Faults(at, "before", Crash),
            lambda operations: different_faults(operations, "before"),
        )


class _Refused(PlayedKills):
    """A query with quarantine: the server refuses one row of each epoch."""

    def __init__(
        self, target: Target, frame: Callable[[Rows], pa.RecordBatch], suite: RefusalsContract
    ) -> None:
        super().__init__(target, frame)
        suite.accept_long(target)
        self.on_invalid_row = "quarantine"
        self._suite = suite

    def before_flush(self) -> None:
        self._suite.refuse_long(self.target)

    def partitions(self, epoch: int) -> tuple[list[Record], list[Record]]:
        first, second = super().partitions(epoch)
        return first, [(self.query_id, 30 + epoch, epoch, self._suite.long_text), *second]

    def rows(self, last: int) -> Table:
        rows = super().rows(last)
        return {key: row for key, row in rows.items() if row[1] != self._suite.long_text}
