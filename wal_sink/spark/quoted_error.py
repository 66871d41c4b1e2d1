"""Finds the sink's own error in Spark's message about a failed query.

The sink raises its errors in Python workers. Spark passes them on as text, between Python and Java frames,
and puts the query's plan after them. So the last lines of an application do not say what to do.
"""

from __future__ import annotations

import re

from wal_sink import errors
from wal_sink.errors import OptionError, WalSinkError, by_name
from wal_sink.spark.modes import append_only

_RAISED = re.compile(rf"^{re.escape(errors.__name__)}\.(\w+): ", re.MULTILINE)
_REMEDY = "\n  What to do: "
_ENDS = re.compile(
    r"\s*( SQLSTATE: |^\tat |^=== Streaming Query ===|^Driver stacktrace:|^Caused by: )",
    re.MULTILINE,
)
"""The beginnings of what Spark puts after a Python traceback."""
_NEEDED = "wal_sink|state_backends|pyarrow|numpy|msgspec|fsspec|tenacity"
_MISSING = re.compile(rf"^ModuleNotFoundError: No module named '({_NEEDED})'", re.MULTILINE)
_IDLE = re.compile(r"Python worker process terminated due to idle timeout")
_NO_MEMORY = re.compile(
    r"^RuntimeError: can't start new thread|^MemoryError\b.*|Python worker exited unexpectedly \(crashed\)",
    re.MULTILINE,
)
_APPEND_ONLY = re.compile(r"wal_sink does not support (\w+) mode")


def failure_in(text: str) -> WalSinkError | None:
    """Return the error of this sink that a message of Spark quotes; None if it quotes none.

    :param text: the message of a `StreamingQueryException`, an `AnalysisException`, or an event.
    """
    if (match := _RAISED.search(text)) is not None:
        message = _until_frames(text[match.end() :])
        what, _, remedy = message.partition(_REMEDY)
        return by_name(match[1])(what, remedy)
    if (match := _MISSING.search(text)) is not None:
        return OptionError(
            f"Spark's Python workers cannot import {match[1]}: it is not installed in their Python.",
            "Install wal_sink on every node, in the Python that spark.pyspark.python or PYSPARK_PYTHON"
            " names, or ship it by spark-submit --archives. On one machine, set PYSPARK_PYTHON to the Python"
            " of the application before the session is made.",
        )
    if _IDLE.search(text) is not None:
        return OptionError(
            "Spark has ended a Python worker as idle, while the worker waited for the log or for a target.",
            "Set spark.python.worker.killOnIdleTimeout to false, or raise"
            " spark.python.worker.idleTimeoutSeconds. If the worker waited for space in the log,"
            " `wal-sink status CHECKPOINT` says why the flush lags.",
        )
    if (match := _NO_MEMORY.search(text)) is not None:
        return WalSinkError(
            f"A Python worker of Spark has ended, or got no memory: {match[0]}",
            "Leave out spark.sql.planner.pythonExecution.memory, or make it 4g: it bounds address space, of"
            " which libraries reserve more than they use. In a task the bound is"
            " spark.executor.pyspark.memory. If neither is set, the worker's last message is in the standard"
            " error of Spark's process. A system that is short of memory ends a worker without a message.",
        )
    if (match := _APPEND_ONLY.search(text)) is not None:
        return append_only(match[1].lower())
    return None


def _until_frames(text: str) -> str:
    """Return the text of an error without what Spark has put after it."""
    end = _ENDS.search(text)
    return (text[: end.start()] if end else text).rstrip()
