"""Starts a played query that compares its plan with the table, as Spark's first micro-batch does.

`PlayedQuery.run` makes a plan once, and never compares it again. Tests of altered tables use this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import pyarrow as pa

from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.model.plan import Plan
from wal_sink.publish.plans import compare_again, plans_in_force
from wal_sink.testing.faults import Faults
from wal_sink.testing.micro_batches import PlayedQuery, Run

Query = TypeVar("Query", bound=PlayedQuery)


def start(query: Query) -> Run[Query]:
    """Start a run of a query.

    :raises SchemaMismatch: if the DataFrame or pending rows do not fit the table.
    """
    return _AgreeingRun(query, Faults())


class _AgreeingRun(Run[Any]):
    """A run that makes and compares plans as `publish.plans.agree` does."""

    def agreed(self, schema: pa.Schema, key: str) -> Mapping[str, Plan]:
        compare_again(self.store)
        checkpoint, targets = Checkpoint(self.checkpoint), dict(self.query.targets)
        return plans_in_force(self.store, checkpoint, targets, schema, key)
