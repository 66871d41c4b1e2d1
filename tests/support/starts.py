"""Starts a played query as Spark does: the first micro-batch agrees with the target on the plan.

`PlayedQuery.run` makes a plan once, and never compares it with the table again: what its tests are about
are the log and the flush. Tests of altered tables start their runs here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import pyarrow as pa

from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.model.plan import Plan
from wal_sink.publish.agreement import compare_again, plans_in_force
from wal_sink.testing.faults import Faults
from wal_sink.testing.micro_batches import PlayedQuery, Run

Query = TypeVar("Query", bound=PlayedQuery)


def start(query: Query) -> Run[Query]:
    """Start a run of a query.

    :raises SchemaMismatch: the table does not fit, or pending rows do not.
    """
    return _AgreeingRun(query, Faults())


class _AgreeingRun(Run[Any]):
    """A run that takes the plans in force, as `publish.agreement.agree` does."""

    def agreed(self, schema: pa.Schema, key: str) -> Mapping[str, Plan]:
        compare_again(self.store)
        checkpoint, targets = Checkpoint(self.checkpoint), dict(self.query.targets)
        return plans_in_force(self.store, checkpoint, targets, schema, key)
