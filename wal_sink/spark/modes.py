"""Refuses the modes of Spark in which its checkpoint does not mean what the sink relies on; and layouts.

The sink relies on plain micro-batches. Spark writes `offsets/N` before epoch N runs. After `commit()` of N it
writes `commits/N`, for every epoch, before it plans N + 1. These modes of Spark 4.3.0 differ:

- *The continuous trigger*: Spark writes offsets, gives the sink no row, and reports no error.
- *Asynchronous progress tracking*: Spark writes `offsets/` and `commits/` later, and not for each epoch. For
  example epochs 0 to 4 have run, `offsets/` has 0, 2 and 5, and `commits/` has 0 and 2. After a crash Spark
  runs the data of epochs 3 and 4 again as a part of epoch 5. The log has manifests of 3 and 4, and
  `commits/5` seems to cover them. Their rows would be written twice. Spark refuses the sink in this mode,
  unless an option overrides the check.
- *Real-Time Mode*: Spark writes `offsets/N` after `commit()` of N, so a replay of N may have other offsets.
  The mode needs output mode update, which Spark refuses for a Python sink when it plans the first
  micro-batch. By default it also tracks progress asynchronously.
"""

from __future__ import annotations

from collections.abc import Mapping

from wal_sink.errors import OptionError

ASYNCHRONOUS = "AsyncProgressTrackingMicroBatchExecution"
"""The class that runs a query with option asyncProgressTrackingEnabled."""

_PLAIN = "MicroBatchExecution"
"""The class that runs plain micro-batches. Its package differs between versions."""


_START = (
    "Start it with trigger(processingTime=…) or trigger(availableNow=True), without"
    " asyncProgressTrackingEnabled."
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


def refuse_mode(query_id: str, execution: str, trigger: str) -> None:
    """Refuse a query that does not run in plain micro-batches.

    :param execution: the class that runs the query.
    :param trigger: the class of its trigger, without the package.
    :raises OptionError: the mode is another one, perhaps of a later Spark.
    """
    runs_as = execution.rpartition(".")[2]
    if trigger == "ContinuousTrigger":
        what = (
            "trigger(continuous=…), in which Spark gives a Python sink no rows and reports no error"
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
    """Return the error for an output mode other than append."""
    return OptionError(
        f"Format wal_sink does not support output mode {mode}.",
        'Use outputMode("append"); an aggregation needs a watermark for it. Update mode goes through'
        " foreachBatch, with wal_sink.batch_writer.",
    )


def refuse_layout(query_id: str, asked: Mapping[str, str]) -> None:
    """Refuse a layout, since Spark does not pass it on, and the table would not have it.

    :param asked: columns, by the method of the writer.
    :raises OptionError: a layout was asked for.
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
