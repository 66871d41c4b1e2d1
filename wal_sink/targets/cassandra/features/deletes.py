"""Deletes by row: of one row, or, without its last clustering columns, of a range of rows."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Mapping

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.targets.arrow_values import are_deletes, keys_of_deletes, planned_operations
from wal_sink.targets.cassandra.feature import Agreement, Feature, Ints, TaskRows
from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.targets.cassandra.row_plan import KEY, CassandraPlan, CassandraRowPlan
from wal_sink.targets.cassandra.rules import InvalidValue, refuse_invalid, row_text
from wal_sink.targets.operations import described, without_operation

log = logging.getLogger(__name__)

SHORT_GC_GRACE_S = 3 * 3600
"""For so long other nodes keep what a replica misses while it is away (`max_hint_window`)."""


class Deletes(Feature):
    """`operationColumn` and `operations`."""

    def describe(self, options: CassandraOptions) -> Mapping[str, str]:
        """Say which rows are deletes."""
        return described(options.operation_column, options.words)

    def written(
        self, schema: pa.Schema, options: CassandraOptions, known: set[str], place: str
    ) -> pa.Schema:
        """Leave out the column of words."""
        return without_operation(schema, options.operation_column, known, place)

    def agree(self, details: CassandraRowPlan, agreed: Agreement) -> CassandraRowPlan:
        """Note the order of the clustering columns: by a prefix of them a delete takes a range of rows."""
        live = agreed.live
        if not agreed.options.operation_column:
            return details
        if live.gc_grace_s < SHORT_GC_GRACE_S:
            log.warning(
                "%s has gc_grace_seconds = %d. A replica that misses a delete and is not repaired"
                " within that time brings the row back. The default is 864000, ten days",
                live.name,
                live.gc_grace_s,
            )
        in_dataframe = {column.in_table: column.name for column in agreed.columns}
        names = [in_dataframe[each.name] for each in live.key if each.role == "clustering"]
        return msgspec.structs.replace(details, clustering=tuple(names))

    def used(self, plan: CassandraPlan) -> bool:
        """Whether a column says which rows are deletes."""
        return plan.operation is not None

    def read(self, rows: TaskRows) -> None:
        """Read the words; of a delete nothing but its key goes into the log."""
        plan = rows.plan
        operations = planned_operations(
            rows.given, plan, functools.partial(row_text, rows.given, plan)
        )
        assert operations is not None
        rows.controls[str(plan.operation)] = operations
        rows.deletes = are_deletes(operations)
        keys = {each.name for each in rows.table.columns if each.role in KEY}
        rows.rows = keys_of_deletes(rows.rows, rows.deletes, keys)
        _refuse_gaps(rows.rows, rows.table)

    def kinds(self, batch: pa.RecordBatch, plan: CassandraPlan, kinds: Ints) -> Ints:
        """Count the clustering columns that a delete has; `read` has seen that nulls come last."""
        names = plan.details.clustering
        given = np.full(batch.num_rows, len(names), np.int64)
        for name in names:
            column = batch.column(name)
            if column.null_count:
                given -= column.is_null().to_numpy(zero_copy_only=False)
        deletes = are_deletes(batch.column(plan.operation)).to_numpy(zero_copy_only=False)
        return np.where(deletes, given, kinds)


def _refuse_gaps(batch: pa.RecordBatch, plan: CassandraPlan) -> None:
    """Refuse a delete with a null before a clustering column that has a value: that is no range of rows."""
    names = plan.details.clustering
    for name, following in itertools.pairwise(names):
        gaps = pc.and_(batch.column(name).is_null(), batch.column(following).is_valid())
        problem = (
            f"is null and {following} after it is not: a delete takes the rows under the first values of"
            f" ({', '.join(names)})"
        )
        remedy = (
            f"Fill {name} in; or make {following} null, too, to delete all rows under what is before"
            f" {name}."
        )
        refuse_invalid(batch, plan, InvalidValue.first(gaps, name, None, problem, remedy))
