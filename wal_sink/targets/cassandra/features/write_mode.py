"""Rows written by UPDATE: a row exists as long as one of its values does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Column
from wal_sink.targets.cassandra.feature import Agreement, Feature, Form
from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.targets.cassandra.row_options import WRITE_MODE
from wal_sink.targets.cassandra.row_plan import CassandraPlan, CassandraRowPlan
from wal_sink.targets.cassandra.schema.table import TableMetadata


class Updates(Feature):
    """`cassandra.writeMode`; and rows whose collections are changed, as an INSERT writes them whole."""

    def describe(self, options: CassandraOptions) -> Mapping[str, str]:
        """Say when a row exists."""
        if options.write_mode != "update":
            return {}
        return {
            "write": f"by UPDATE: a row exists as long as one of its values does ({WRITE_MODE})"
        }

    def agree(self, rows: CassandraRowPlan, agreed: Agreement) -> CassandraRowPlan:
        """Note it, for what an UPDATE can write."""
        if not agreed.wanted.update:
            return rows
        refuse_no_update(agreed.live, agreed.columns, agreed.options.operation_column)
        return msgspec.structs.replace(rows, update=True)

    def used(self, plan: CassandraPlan) -> bool:
        """Whether rows are written by UPDATE."""
        return plan.details.update

    def form(self, plan: CassandraPlan, form: Form) -> Form:
        """Write an UPDATE."""
        return form._replace(update=True)


def refuse_no_update(live: TableMetadata, columns: Sequence[Column], operation: str) -> None:
    """Refuse what no UPDATE can write.

    :param columns: those of the table that the DataFrame has.
    :param operation: the value of `operationColumn`.
    :raises SchemaMismatch: there is no value to set; or clustering columns are beside static ones alone; or
        rows are partitions, and some are deletes.
    """
    roles = {column.role for column in columns}
    if not roles & {"static", "regular"}:
        raise SchemaMismatch(
            f"The DataFrame has only the key of {live.name}, and {WRITE_MODE} is update: no value is set.",
            f"Add a column, or leave out {WRITE_MODE}: an insert writes rows of keys alone.",
        )
    if "regular" not in roles and "clustering" in roles:
        raise SchemaMismatch(
            f"Of {live.name} the DataFrame has static columns and clustering columns: an UPDATE of static"
            " columns alone is of a partition, and Cassandra refuses it with clustering columns.",
            "Drop the clustering columns, to write partitions; or add a column that is not static.",
        )
    if "regular" not in roles and operation and any(c.role == "clustering" for c in live.key):
        raise SchemaMismatch(
            f"Of {live.name} the DataFrame has static columns alone, and operationColumn is {operation}: a"
            " delete would take the whole partition, with all its rows.",
            "Leave out operationColumn, and clear values by nulls, with cassandra.nulls=write; or add the"
            " clustering columns and a column that is not static.",
        )
