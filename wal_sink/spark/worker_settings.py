"""Warns of settings by which Spark ends its own Python workers before their work is done. Pure.

A worker in `commit()` cannot show that it works. Spark counts the bytes that a worker sends, and the first
bytes of a commit are its answer (`PythonPlannerRunner.WorkerInputStream` of Spark 4.3.0).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

IDLE_S = (
    "spark.sql.execution.pyspark.udf.idleTimeoutSeconds",
    "spark.python.worker.idleTimeoutSeconds",
)
KILL = (
    "spark.sql.execution.pyspark.udf.killOnIdleTimeout",
    "spark.python.worker.killOnIdleTimeout",
)
"""Of the session, or else of the application."""
PLANNER_MEMORY = "spark.sql.planner.pythonExecution.memory"

_LEAST_MIB = 4 * 1024
"""Of address space, most of which is reserved and never used: a worker that makes the plan of a Delta table
was seen to reserve 2.4 GiB, to use 140 MB of it, and to die below 1 GiB (delta-rs 1.6.6)."""
_SIZE = re.compile(r"(\d+)\s*([kmgtp]?)b?")
_MIB = {"k": 1 / 1024, "": 1, "m": 1, "g": 1024, "t": 1024**2, "p": 1024**3}


def warnings(value_of: Callable[[str], str | None]) -> Iterator[str]:
    """Yield what the settings of a session do to a query.

    :param value_of: the value of a setting; None where it is not set.
    """
    idle, kill = (next(filter(None, map(value_of, keys)), "") for keys in (IDLE_S, KILL))
    if kill.lower() == "true" and idle.rstrip("s") not in {"", "0"}:
        yield (
            f"{KILL[1]} is true, and a worker counts as idle after {idle} s ({IDLE_S[1]}). A commit that"
            " waits for space in the log looks idle, and so does a flush job: Spark then ends the worker, and"
            f" with it the query. Leave out {KILL[1]}, or set wal.onFull to fail"
        )
    size = _SIZE.fullmatch((value_of(PLANNER_MEMORY) or "").strip().lower())
    if size is not None and int(size[1]) * _MIB[size[2]] < _LEAST_MIB:
        yield (
            f"{PLANNER_MEMORY} is {size[0]}, which bounds the address space of the worker that plans and"
            " commits each micro-batch. Its libraries reserve more than they use: it may end without a word,"
            ' or with "can\'t start new thread". Leave the setting out, or make it 4g'
        )
