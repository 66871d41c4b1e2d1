"""The errors that refuse a query, and the search for the sink's own error in a message of Spark.

The sink needs plain micro-batches. For each epoch N, Spark then writes `offsets/N` before N runs, and
`commits/N` after `commit()` of N and before it plans N + 1. These modes of Spark 4.3.0 differ, and are
refused:

- *The continuous trigger*: Spark writes offsets, gives the sink no row, and reports no error.
- *Asynchronous progress tracking*: Spark writes `offsets/` and `commits/` later, and not for each epoch. For
  example epochs 0 to 4 have run, `offsets/` has 0, 2 and 5, and `commits/` has 0 and 2. After a crash Spark
  runs the data of epochs 3 and 4 again as a part of epoch 5. The log has manifests of 3 and 4, and
  `commits/5` seems to cover them, so their rows would be written twice.
- *Real-Time Mode*: Spark writes `offsets/N` after `commit()` of N, so a second run of N may have other
  offsets. By default it also tracks progress asynchronously.

The sink raises other errors in Python workers. Spark returns these errors as text, between frames of Python
and Java. `failure_in` finds the error in that text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from wal_sink import errors
from wal_sink.errors import OptionError, WalSinkError, by_name
from wal_sink.targets.base import Target

ASYNCHRONOUS = "AsyncProgressTrackingMicroBatchExecution"
"""The class that runs a query with option asyncProgressTrackingEnabled."""

_PLAIN = "MicroBatchExecution"
"""The class that runs plain micro-batches. Its package differs between versions."""

_REFUSED = {
    "ContinuousTrigger": "trigger(continuous=…), in which Spark gives a Python sink no rows and reports no"
    " error",
    "RealTimeTrigger": "trigger(realTime=…), in which Spark plans an epoch only after it has run",
    ASYNCHRONOUS: "option asyncProgressTrackingEnabled, with which Spark's checkpoint leaves out epochs",
}
"""What is wrong with a mode, by the class of its trigger or the class that runs the query."""

_START = (
    "Start it with trigger(processingTime=…) or trigger(availableNow=True), without"
    " asyncProgressTrackingEnabled."
)

_RAISED = re.compile(rf"^{re.escape(errors.__name__)}\.(\w+): ", re.MULTILINE)
_REMEDY = "\n  What to do: "
_ENDS = re.compile(
    r"\s*( SQLSTATE: |^\tat |^=== Streaming Query ===|^Driver stacktrace:|^Caused by: )",
    re.MULTILINE,
)
"""Matches the beginning of the text that Spark puts after a Python traceback."""
_MISSING = re.compile(r"^ModuleNotFoundError: No module named '([^']+)'", re.MULTILINE)
_NEEDED = {"wal_sink", "state_backends", "pyarrow", "numpy", "msgspec", "fsspec", "tenacity"}
"""The packages that every worker needs."""
_TRACEBACK = "Traceback (most recent call last):"
_OWN_FRAME = re.compile(r'File "[^"\n]*[/\\](wal_sink|state_backends)[/\\]')
_IDLE = re.compile(r"Python worker process terminated due to idle timeout")
_NO_MEMORY = re.compile(
    r"^RuntimeError: can't start new thread|^MemoryError\b.*|^ImportError: .*failed to map segment.*"
    r"|Python worker exited unexpectedly \(crashed\)",
    re.MULTILINE,
)
_APPEND_ONLY = re.compile(r"wal_sink does not support (\w+) mode")


def refuse_mode(query_id: str, execution: str, trigger: str) -> None:
    """Refuse a query that does not run in plain micro-batches.

    :param execution: the class that runs the query.
    :param trigger: the class of its trigger, without the package.
    :raises OptionError: the query runs in another mode, perhaps a mode of a later Spark.
    """
    runs_as = execution.rpartition(".")[2]
    what = _REFUSED.get(trigger) or _REFUSED.get(runs_as)
    if what is None and runs_as != _PLAIN:
        what = f"a mode of Spark that the sink does not know ({runs_as})"
    if what is not None:
        raise OptionError(f"Query {query_id} was started with {what}.", _START)


def refuse_layout(layouts: Mapping[str, str]) -> None:
    """Refuse `partitionBy` and `clusterBy`, since Spark does not pass them to a Python sink.

    :param layouts: the columns by method, such as `{"partitionBy": "day"}`; empty if it was not called.
    :raises OptionError: one of the methods was called.
    """
    for method, columns in layouts.items():
        if columns:
            remedy = f"Leave out .{method}(…): an existing table keeps its own layout."
            if method == "partitionBy":
                remedy += " A table that createTable makes is partitioned by"
                remedy += f' .option("partitionColumns", "{columns}").'
            raise OptionError(
                f"The query has {method}({columns}), which Spark does not pass to a Python sink.",
                remedy,
            )


def append_only(mode: str) -> OptionError:
    """Return the error for an output mode other than append."""
    return OptionError(
        f"Format wal_sink does not support output mode {mode}.",
        'Use outputMode("append"); an aggregation needs a watermark for it. Update mode goes through'
        " foreachBatch, with wal_sink.batch_writer.",
    )


def unplanned(offsets: str) -> OptionError:
    """Return the error for a run whose epoch Spark has not planned.

    :param offsets: URL of the missing file of `offsets/`.
    """
    return OptionError(
        f"Spark starts an epoch without {offsets}. Either another driver has overtaken this one in the same"
        " checkpoint. Or the query has trigger(continuous=…), in which Spark gives a Python sink no rows and"
        " reports no error. Or it has a mode of Spark that the sink does not know.",
        f"Find out if two drivers run on the checkpoint. If only this one runs: {_START}",
    )


def failure_in(text: str) -> WalSinkError | None:
    """Return the error of this sink that a message of Spark quotes; None if the message quotes no such error.

    :param text: the message of a `StreamingQueryException`, an `AnalysisException`, or an event.
    """
    if (match := _RAISED.search(text)) is not None:
        message = _until_frames(text[match.end() :])
        what, _, remedy = message.partition(_REMEDY)
        return by_name(match[1])(what, remedy)
    if (module := _missing_module(text)) is not None:
        return OptionError(
            f"Spark's Python workers cannot import {module}: it is not installed in their Python.",
            "Install its package on every node, in the Python that spark.pyspark.python or PYSPARK_PYTHON"
            " names, or ship it by spark-submit --archives or --py-files. On one machine, before the session"
            " is made, put the folder of a module of your own on PYTHONPATH, and add:\n"
            'os.environ["PYSPARK_PYTHON"] = sys.executable',
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
            "Leave out spark.sql.planner.pythonExecution.memory, or make it 4g: the setting bounds address"
            " space, and libraries reserve more address space than they use. In a task the bound is"
            " spark.executor.pyspark.memory. If neither is set, the worker's last message is in the standard"
            " error of Spark's process. A system that is short of memory ends a worker without a message.",
        )
    if (match := _APPEND_ONLY.search(text)) is not None:
        return append_only(match[1].lower())
    return None


def _missing_module(text: str) -> str | None:
    """Return the module that the sink or a target needs and a worker lacks; None if there is none."""
    targets = [Target]
    for target in targets:
        targets += target.__subclasses__()
    needed = _NEEDED | {target.__module__.partition(".")[0] for target in targets}
    for match in _MISSING.finditer(text):
        frames = text[text.rfind(_TRACEBACK, 0, match.start()) : match.start()]
        if match[1].partition(".")[0] in needed or _OWN_FRAME.search(frames) is not None:
            return match[1]
    return None


def _until_frames(text: str) -> str:
    """Return the text of an error without the stack frames that Spark has appended."""
    end = _ENDS.search(text)
    return (text[: end.start()] if end else text).rstrip()
