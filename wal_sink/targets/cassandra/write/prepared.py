"""What is prepared once for a plan: its tables with their statements; and which row a request begins with."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from wal_sink.model.plan import Plan
from wal_sink.targets.cassandra.times.given import planned_times
from wal_sink.targets.cassandra.types.row_text import key_text
from wal_sink.targets.cassandra.write.batches import Limits
from wal_sink.targets.cassandra.write.refused_row import first_row
from wal_sink.targets.cassandra.write.replicas import Replicas
from wal_sink.targets.cassandra.write.slice_buffer import SliceBuffer
from wal_sink.targets.cassandra.write.statements import Statement, Statements


class Prepared(NamedTuple):
    """A plan of one table, and what is prepared once to write by it."""

    plan: Plan
    statements: Statements
    limits: Limits
    replicas: Replicas


class Planned(NamedTuple):
    """A plan of the log, its tables, and the rows that wait to be written by it."""

    plan: Plan
    tables: tuple[Prepared, ...]
    buffer: SliceBuffer


class FirstRow(NamedTuple):
    """The first row of a request."""

    values: list[bytes | None]
    """As its statement takes them."""
    plan: Plan
    """Of its table."""
    statement: Statement


def row_of(request: Any, plans: Iterable[Planned]) -> FirstRow | None:
    """Return the first row of a request; None when none of the plans has its statement."""
    query_id, values = first_row(request)
    for planned in plans:
        for table in planned.tables:
            for statement in table.statements.known():
                if statement.prepared.query_id == query_id:
                    return FirstRow(values, table.plan, statement)
    return None


def ledger_us(request: Any, plans: Collection[Planned]) -> int | None:
    """Return the write timestamp that the ledger has for the row of a request; None: that is not known.

    Where a plan has event times, a request has these instead; and two plans may share a statement. A total is
    of several rows, and a row with a condition is dated by the server.
    """
    row = row_of(request, plans)
    if row is None or any(planned_times(each.plan).event_column for each in plans):
        return None
    if row.plan.one_session:
        return None
    of = row.statement
    stamp = row.values[0 if of.stamp_first else of.columns.stop]
    assert stamp is not None
    return int.from_bytes(stamp, "big", signed=True)


def described(row: FirstRow | None, version: int) -> str:
    """Name a row by its key, and its table.

    :param version: of the native protocol.
    """
    if row is None:
        return "a row"
    of = row.statement
    types = [column.type for column in of.prepared.column_metadata]
    decoded = [
        kind.from_binary(value, version)
        if column.role in ("partition", "clustering")  # others are not shown
        else None
        for column, kind, value in zip(
            of.plan.columns, types[of.columns], row.values[of.columns], strict=True
        )
    ]
    return f"{key_text(of.plan, decoded)} of {of.plan.table}"
