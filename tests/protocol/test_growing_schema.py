"""A schema that grows while epochs wait: each epoch is flushed by the plan that it was checked against."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.protocol.engine import Rows, World, in_memory
from wal_sink import errors
from wal_sink.testing.faults import Faults


class GrowingWorld(World):
    """A query in memory whose DataFrame has one more column from each `grow` on."""

    def __init__(self) -> None:
        super().__init__(*in_memory())
        self.names = ["v"]

    def frame(self, rows: Rows) -> pa.RecordBatch:
        """Return rows with the same value in each column."""
        columns = {name: pa.array([value for _, value in rows], pa.int64()) for name in self.names}
        return pa.record_batch({"k": pa.array([key for key, _ in rows], pa.string()), **columns})

    def whole(self) -> dict[str, dict[str, int | None]]:
        """Return the rows that a reader sees."""
        return {key[0]: row for key, row in self.store.rows().items()}


def test_epochs_of_several_schemas_share_a_window() -> None:
    """A night without the target, three starts with more columns each, then one with fewer.

    The flush of it all is interrupted, and finished by another flusher. What an epoch lacks stays.
    """
    world = GrowingWorld()
    keys = []
    for number, names in enumerate((["v"], ["v", "w"], ["w", "v", "x"], ["v"])):
        world.names = names
        run = world.run()
        keys.append(run.plan.key)
        run.batch([("all", number), (f"only {number}", number)])
        run.batch([(f"second {number}", number)])
        run.end()
    assert len({*keys}) == 3
    flusher = world.flusher(Faults(at=4, error=ConnectionError, matching="write"))
    flusher.run_once()
    with pytest.raises(errors.TargetUnavailable):
        flusher.run_once()
    begun = world.store.ledger[world.query_id].begun
    assert begun is not None
    assert len(begun.epochs) == 8, "one window of all plans"
    world.flush()
    assert world.whole() == {
        "all": {"v": 3, "w": 2, "x": 2},
        **{f"{which} 0": {"v": 0} for which in ("only", "second")},
        **{f"{which} 1": {"v": 1, "w": 1} for which in ("only", "second")},
        **{f"{which} 2": {"v": 2, "w": 2, "x": 2} for which in ("only", "second")},
        **{f"{which} 3": {"v": 3} for which in ("only", "second")},
    }
    assert world.log_backend.list("segments/") == []
