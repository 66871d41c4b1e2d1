"""The plan of each of several tables: kept in the details of the plan that the log has. Pure.

That plan has the columns of the DataFrame, as the segments have them. By the plan of a table rows are checked
and written as if there were no other table; a plan for one table, named by option `table`, is its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec
import pyarrow as pa

from wal_sink.model.plan import Plan, Role
from wal_sink.targets.cassandra.names import TableName

TABLES_DETAIL = "tables"
"""Under which name a plan's details have the tables; a plan for one table has none."""

_AMONG = "among"
"""Under which name the plan of one of several tables has the names of all; it is never written to the log."""

_OWN = ("table", "types", "clustering", "indexes", "write", "collections")
"""The details that each table has of its own; plans of older versions have `write` for all tables."""


class _Placed(msgspec.Struct, frozen=True):
    """A column of the DataFrame, as a table has it, or needs it to write a row."""

    name: str
    type: str
    role: Role


class _Table(msgspec.Struct, frozen=True):
    """A table, and what was agreed with it."""

    table: str
    """Its name, without the keyspace."""
    columns: tuple[_Placed, ...]
    """Those that the table has, and those that say what becomes of a row."""
    details: dict[str, str]


def table_details(plans: Sequence[Plan]) -> dict[str, str]:
    """Return what the details of a plan for several tables have of them.

    :param plans: of each table, as if it were the only one.
    """
    tables = [
        _Table(
            plan.details["table"],
            tuple(_Placed(each.name, each.type, each.role) for each in plan.columns),
            {name: text for name, text in plan.details.items() if name in _OWN},
        )
        for plan in plans
    ]
    named = ",".join(table.table for table in tables)
    return {"table": named, TABLES_DETAIL: msgspec.json.encode(tables).decode()}


def table_plans(plan: Plan) -> tuple[Plan, ...]:
    """Return the plan of each table, with the columns that it has, and those that say what a row does."""
    if TABLES_DETAIL not in plan.details:
        return (plan,)
    return tuple(_plan(plan, table) for table in _read_tables(plan.details[TABLES_DETAIL]))


def _plan(plan: Plan, table: _Table) -> Plan:
    placed = {column.name: column for column in table.columns}
    columns = tuple(
        msgspec.structs.replace(column, type=own.type, role=own.role)
        for column in plan.columns
        if (own := placed.get(column.name)) is not None
    )
    shared = {name: text for name, text in plan.details.items() if name != TABLES_DETAIL}
    name = TableName(plan.details["keyspace"], table.table)
    return msgspec.structs.replace(
        plan,
        table=str(name),
        columns=columns,
        details={**shared, **table.details, _AMONG: plan.details["table"]},
    )


def tables_option(plan: Plan) -> str:
    """Return the option that names the table of a plan, or all of those among which it is."""
    if (among := plan.details.get(_AMONG)) is not None:
        return f"tables={among}"
    return f"table={plan.details['table']}"


def table_names(plan: Plan) -> tuple[str, ...]:
    """Return the names of the tables, without the keyspace."""
    return tuple(each.details["table"] for each in table_plans(plan))


def columns_of(batch: pa.RecordBatch, plan: Plan, table: Plan) -> pa.RecordBatch:
    """Return the batch without the columns that a table does not have.

    :param plan: the one that the log has, by which the batch was made.
    :param table: one of `table_plans`.
    """
    lacking = {column.name for column in plan.columns} - {column.name for column in table.columns}
    if not lacking:
        return batch
    return batch.select([name for name in batch.schema.names if name not in lacking])


@lru_cache(maxsize=64)
def _read_tables(text: str) -> tuple[_Table, ...]:
    return msgspec.json.decode(text, type=tuple[_Table, ...])


_read_tables("[]")  # so that one thread learns the type, see `model.codec.learn`
