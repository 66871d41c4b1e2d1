"""Rows written by UPDATE; and lists that are not frozen.

A row that is written by UPDATE exists as long as one of its values does. The server gives each write of a
list elements of its own, so its rows are sent once with each timestamp (rule `repeatable`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Column
from wal_sink.targets.cassandra.feature import Agreement, Feature
from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.targets.cassandra.row_options import (
    EVENT_COLUMN,
    EXPIRES_COLUMN,
    TTL,
    TTL_COLUMN,
    WRITE_MODE,
)
from wal_sink.targets.cassandra.row_plan import CassandraPlan, CassandraRowPlan, Lives
from wal_sink.targets.cassandra.table import TableMetadata
from wal_sink.targets.cassandra.types import has_lists


class Updates(Feature):
    """`cassandra.writeMode`."""

    noted = "update"

    def describe(self, options: CassandraOptions) -> Mapping[str, str]:
        """Say when a row exists."""
        if options.write_mode != "update":
            return {}
        return {
            "write": f"by UPDATE: a row exists as long as one of its values does ({WRITE_MODE})"
        }

    def agree(self, details: CassandraRowPlan, agreed: Agreement) -> CassandraRowPlan:
        """Note it, for what an UPDATE can write."""
        if agreed.options.write_mode != "update":
            return details
        refuse_no_update(agreed.live, agreed.columns, agreed.options.operation_column)
        return msgspec.structs.replace(details, update=True)


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


_FROZEN = "Make the columns frozen<list<…>>, leave them out of the DataFrame"


class Lists(Feature):
    """No option: the table's columns ask for it."""

    def used(self, plan: CassandraPlan) -> bool:
        """Whether a column is such a list."""
        return has_lists(plan)

    def refuse_drift(self, plan: CassandraPlan, live: TableMetadata) -> None:
        """Refuse what hangs on a row's timestamp, which each attempt at its list raises; also at the start.

        :raises SchemaMismatch: rows bring their timestamps along, or live for a number of seconds.
        """
        if plan.details.event_column:
            raise SchemaMismatch(
                f"{live.name} has lists that are not frozen, and {EVENT_COLUMN} is given: a row that is"
                " written twice at the time of its event would have their elements twice.",
                f"{_FROZEN}, or leave out the option.",
            )
        lives = plan.details.lives or Lives()
        asked = {
            TTL: lives.ttl_s,
            TTL_COLUMN: lives.ttl_column,
            f"default_time_to_live = {live.default_ttl}": live.default_ttl,
        }
        if seconds := ", ".join(name for name, value in asked.items() if value):
            raise SchemaMismatch(
                f"{live.name} has lists that are not frozen, and its rows live for a number of seconds"
                f" ({seconds}): they count from a row's timestamp, which each attempt at its lists raises.",
                f"{_FROZEN}; or say when rows expire by {EXPIRES_COLUMN} alone, and ALTER TABLE {live.name}"
                " WITH default_time_to_live = 0.",
            )
