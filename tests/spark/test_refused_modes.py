"""The modes of Spark that the sink refuses, by the names of their classes."""

from __future__ import annotations

import pytest

from wal_sink.errors import OptionError
from wal_sink.spark.query_errors import refuse_mode

PACKAGE = "org.apache.spark.sql.execution.streaming"
PLAIN = f"{PACKAGE}.runtime.MicroBatchExecution"


@pytest.mark.parametrize("execution", [PLAIN, f"{PACKAGE}.MicroBatchExecution"])
@pytest.mark.parametrize(
    "trigger", ["ProcessingTimeTrigger", "AvailableNowTrigger$", "OneTimeTrigger$"]
)
def test_plain_micro_batches_are_not_refused(execution: str, trigger: str) -> None:
    """The package of the class differs between versions of Spark."""
    refuse_mode("q", execution, trigger)


@pytest.mark.parametrize(
    ("execution", "trigger", "named"),
    [
        (f"{PACKAGE}.continuous.ContinuousExecution", "ContinuousTrigger", "continuous=…"),
        (PLAIN, "RealTimeTrigger", "realTime=…"),
        (
            f"{PACKAGE}.runtime.AsyncProgressTrackingMicroBatchExecution",
            "RealTimeTrigger",
            "realTime",
        ),
        (
            f"{PACKAGE}.runtime.AsyncProgressTrackingMicroBatchExecution",
            "ProcessingTimeTrigger",
            "asyncProgressTrackingEnabled",
        ),
        (f"{PACKAGE}.runtime.NewExecution", "ProcessingTimeTrigger", r"\(NewExecution\)"),
    ],
)
def test_every_other_mode_is_refused(execution: str, trigger: str, named: str) -> None:
    """A mode of a later Spark is refused, too. The error has the name of the mode, and a remedy."""
    with pytest.raises(OptionError, match=rf"Query q .*{named}(.|\n)*trigger\(availableNow=True\)"):
        refuse_mode("q", execution, trigger)
