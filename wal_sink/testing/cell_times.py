"""What `CellStore` does with the times that rows bring along: as the target Cassandra does."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wal_sink.errors import InvalidRow
from wal_sink.model.plan import Plan
from wal_sink.targets.base import Slice
from wal_sink.targets.cassandra.times.given import planned_times
from wal_sink.targets.cassandra.times.lives import live_for_a_time, seconds_left
from wal_sink.targets.cassandra.times.read import EVENT_US, read_times
from wal_sink.targets.cassandra.times.ties import settled


def timed(
    batch: pa.RecordBatch, plan: Plan, deletes: pa.Array | None, now_us: int
) -> pa.RecordBatch:
    """Return a batch of the DataFrame with its times as the log has them.

    :raises InvalidRow: a time cannot be taken.
    """
    times, invalid = read_times(batch, plan, deletes, now_us)
    if invalid:
        raise InvalidRow(
            f"Row {invalid.row}, column {invalid.path} {invalid.problem}", invalid.remedy
        )
    kept = batch.drop_columns([each.name for each in plan.columns if each.role == "time"])
    return pa.RecordBatch.from_arrays(
        [*kept.columns, *times.values()], names=[*kept.schema.names, *times]
    )


def of_each_key(batch: pa.RecordBatch, plan: Plan, keys: list[str]) -> pa.RecordBatch:
    """Settle rows of one key and event time."""
    return settled(batch, plan, EVENT_US, lambda: _groups(batch, [*keys, EVENT_US]))


def lives_of(plan: Plan, rows: Slice, now_us: int) -> list[int] | None:
    """Return the seconds that are left to each row; None: they live for ever."""
    times = planned_times(plan)
    if not live_for_a_time(times, 0):
        return None
    stamps = np.arange(rows.first_us, rows.first_us + rows.batch.num_rows, dtype=np.int64)
    left: list[int] = seconds_left(rows.batch, stamps, times, now_us // 1_000_000).tolist()
    return left


def _groups(batch: pa.RecordBatch, names: list[str]) -> npt.NDArray[np.int64]:
    """Return a number for each row, the same where all of these columns are."""
    seen: dict[tuple[object, ...], int] = {}
    rows = [tuple(row.values()) for row in batch.select(names).to_pylist()]
    return np.array([seen.setdefault(row, len(seen)) for row in rows], np.int64)
