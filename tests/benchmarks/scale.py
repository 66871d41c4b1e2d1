"""A model of an epoch's duration, with constants that were measured on two cores.

`docs/scale.md` has its tables; a test compares them.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

EPOCH_S = 0.21
"""The fixed time of an epoch: 0.12 s of Spark's addBatch, 0.09 s of its checkpoint in a folder."""
TASK_S = 0.055
"""The time of a task without its rows, mostly of Spark's Python worker."""
APPEND_S = 3.3e-6
"""The CPU time of a task for a row of three columns, from Spark's rows to a segment with lz4."""
FLUSH_S = 2.5e-6
"""The CPU time of the flush for a scattered row; a grouped row takes 1.0e-6."""
PUBLISH_S = 7.6e-6
"""The CPU time of `commit()` for a segment, in one Python worker on the driver's host."""
MANIFEST_BYTES = 204
"""The bytes of a segment in the manifest."""
LOOK_S = {"folder": 5e-6, "bucket": 0.1 / 1_000}
"""The time of `commit()` to check that a segment exists: a `stat`, or its share of a listing."""

Store = Literal["folder", "bucket"]


class Epoch(NamedTuple):
    """The duration of the steps of an epoch, in seconds."""

    tasks_s: float
    commit_s: float
    flush_s: float

    @property
    def micro_batch_s(self) -> float:
        """The duration of Spark's micro-batch."""
        return EPOCH_S + self.tasks_s + self.commit_s

    @property
    def saturates(self) -> str:
        """The name of the longest step."""
        steps = {
            "Spark's fixed time": EPOCH_S,
            "the tasks": self.tasks_s,
            "commit() on the driver's host": self.commit_s,
            "the flush": self.flush_s,
        }
        return max(steps, key=lambda step: steps[step])


def epoch(rows: int, tasks: int, cores: int, store: Store) -> Epoch:
    """Return the durations of an epoch; its flush comes after it, and has all cores.

    The model assumes that target and network are fast enough.
    """
    at_a_time = min(tasks, cores)
    return Epoch(
        tasks_s=(tasks * TASK_S + rows * APPEND_S) / at_a_time,
        commit_s=tasks * (PUBLISH_S + LOOK_S[store]),
        flush_s=rows * FLUSH_S / cores,
    )


def table() -> list[str]:
    """Return the rows of the table in docs/scale.md."""
    lines = []
    for cores in (10, 100, 1_000):
        for rows, tasks in (
            (cores * 10_000, cores),
            (cores * 100_000, cores),
            (cores * 100_000, 100_000),
        ):
            plans = epoch(rows, tasks, cores, "bucket")
            size = tasks * MANIFEST_BYTES / 1e6
            lines.append(
                f"| {cores:,} | {rows:,} | {tasks:,} | {plans.micro_batch_s:.1f} s | {plans.flush_s:.1f} s"
                f" | {size:.1f} MB | {plans.saturates} |"
            )
    return lines
