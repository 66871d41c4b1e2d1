"""A target whose query does not wait long for a flusher that is not there."""

from __future__ import annotations

from typing import Any

from wal_sink.protocol import budget
from wal_sink.targets.cassandra import CassandraTarget

IMPATIENT_TARGET = "tests.spark.impatient:ImpatientTarget"
"""For option `target`."""

NO_FLUSHER_S = 2.0


class ImpatientTarget(CassandraTarget):
    """The target; where it arrives, in Spark's Python workers and nowhere else, the wait is short."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        budget.NO_FLUSHER_S = NO_FLUSHER_S
        self.__dict__.update(state)
