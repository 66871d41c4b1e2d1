"""Refuses the modes of Spark in which its checkpoint does not say what the sink relies on; and layouts.

The sink relies on plain micro-batches: Spark writes `offsets/N` before epoch N runs, and `commits/N` after
`commit()` of N, for every epoch, before it plans N + 1. What was measured or read of Spark 4.3.0:

- *The continuous trigger*: Spark drops the error of its own batch writer for Python. It writes offsets, gives
  the sink no row, and tells no error.
- *Asynchronous progress tracking*: Spark writes `offsets/` and `commits/` later, and not for each epoch. Say
  that 0 to 4 have run and that `offsets/` has 0, 2 and 5, `commits/` 0 and 2. After a crash Spark runs all
  from 3 on again, as epoch 5. The sink has manifests of 3 and 4, and `commits/5` seems to cover them: their
  rows would come twice. Spark refuses the sink there, unless an option overrides that.
- *Real-Time Mode*: Spark writes `offsets/N` after `commit()` of N, so that a replay covers other offsets
  under the same number. It needs output mode update, which Spark refuses for a Python sink when it plans the
  first micro-batch. It also tracks progress asynchronously, unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping

from wal_sink.errors import OptionError

ASYNCHRONOUS = "AsyncProgressTrackingMicroBatchExecution"
"""How Spark runs a query with option asyncProgressTrackingEnabled."""

_PLAIN = "MicroBatchExecution"
"""Name of the class, without its package, which moved between versions."""


_START = (
    "Start it with trigger(processingTime=…) or trigger(availableNow=True), without"
    " asyncProgressTrackingEnabled."
)


def unplanned(offsets: str) -> OptionError:
    """Return the error for a run whose epoch Spark has not planned.

    :param offsets: URL of the file that Spark writes before it runs a micro-batch.
    """
    return OptionError(
        f"Spark starts an epoch without {offsets}: the query has trigger(continuous=…), in which Spark gives"
        " a Python sink no rows and tells no error, or a mode of Spark that the sink does not know.",
        _START,
    )


def refuse_mode(query_id: str, execution: str, trigger: str) -> None:
    """Refuse a query that does not run in plain micro-batches.

    :param execution: the class with which Spark runs it.
    :param trigger: the class of its trigger, without the package.
    :raises OptionError: in any other mode, also one that is not known yet.
    """
    runs_as = execution.rpartition(".")[2]
    if trigger == "ContinuousTrigger":
        what = (
            "trigger(continuous=…), in which Spark gives a Python sink no rows and tells no error"
        )
    elif trigger == "RealTimeTrigger":
        what = "trigger(realTime=…), in which Spark plans an epoch only after it has run"
    elif runs_as == ASYNCHRONOUS:
        what = (
            "option asyncProgressTrackingEnabled, with which Spark's checkpoint leaves out epochs"
        )
    elif runs_as != _PLAIN:
        what = f"a mode of Spark that the sink does not know ({runs_as})"
    else:
        return
    raise OptionError(f"Query {query_id} was started with {what}.", _START)


def append_only(mode: str) -> OptionError:
    """Return the error for another output mode than append."""
    return OptionError(
        f"Format wal_sink does not take output mode {mode}.",
        'Use outputMode("append"); an aggregation needs a watermark for it. Update mode goes through'
        " foreachBatch, with wal_sink.batch_writer.",
    )


def refuse_layout(query_id: str, asked: Mapping[str, str]) -> None:
    """Refuse a layout that Spark does not pass on: the table would have another one without a word.

    :param asked: columns, by the method of the writer.
    :raises OptionError: there are some.
    """
    for method, columns in asked.items():
        remedy = f"Leave out .{method}(…): the table that is there keeps its own layout."
        if method == "partitionBy":
            remedy += " One that createTable makes is partitioned by"
            remedy += f' .option("partitionColumns", "{columns}").'
        raise OptionError(
            f"Query {query_id} was started with {method}({columns}), which Spark gives to no Python sink.",
            remedy,
        )
