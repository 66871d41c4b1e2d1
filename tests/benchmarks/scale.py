"""A small model of how long an epoch takes, from constants that were measured on two cores. Pure.

`docs/scale.md` has its tables, and a test compares them with it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

EPOCH_S = 0.21
"""Fixed: 0.12 s of Spark's addBatch, 0.09 s of its checkpoint in a folder."""
TASK_S = 0.055
"""A slot's time for a task, beside its rows: mostly Spark's Python worker."""
APPEND_S = 3.3e-6
"""CPU of a task for a row of three columns, from Spark's rows to a segment with lz4."""
FLUSH_S = 2.5e-6
"""CPU of the flush for a row whose partition has few others; 1.0e-6 where they come in groups."""
PUBLISH_S = 7.6e-6
"""CPU of `commit()` for a segment, in one Python worker on the driver's host."""
MANIFEST_BYTES = 204
"""Of a segment in the manifest."""
LOOK_S = {"folder": 5e-6, "bucket": 0.1 / 1_000}
"""Of `commit()` for a segment, to see that it is there: a `stat`, or its share of a listing."""

Store = Literal["folder", "bucket"]


class Epoch(NamedTuple):
    """How long the steps of an epoch take, in seconds."""

    tasks_s: float
    commit_s: float
    flush_s: float

    @property
    def micro_batch_s(self) -> float:
        """What Spark waits for."""
        return EPOCH_S + self.tasks_s + self.commit_s

    @property
    def saturates(self) -> str:
        """What takes longest."""
        steps = {
            "Spark's fixed time": EPOCH_S,
            "the tasks": self.tasks_s,
            "commit() on the driver's host": self.commit_s,
            "the flush": self.flush_s,
        }
        return max(steps, key=lambda step: steps[step])


def epoch(rows: int, tasks: int, cores: int, store: Store) -> Epoch:
    """Return what an epoch takes that has the cores for itself; its flush has them after that.

    The target is taken to keep up, and the network, too.
    """
    at_a_time = min(tasks, cores)
    return Epoch(
        tasks_s=(tasks * TASK_S + rows * APPEND_S) / at_a_time,
        commit_s=tasks * (PUBLISH_S + LOOK_S[store]),
        flush_s=rows * FLUSH_S / cores,
    )


def table() -> list[str]:
    """Return the rows of the page's table."""
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
