"""Rows that are written where there is none of their key: the first row of a key stays.

A batch with conditions is taken as a whole or not at all, so each row is a request by itself. Of the rows of
a key that wait together the first one alone is sent: once it is acknowledged there is a row, from here or
from elsewhere, and the others would change nothing.

The server agrees on such rows one after the other within a partition; several at once would be in each
other's way, and time out. So requests come in rounds, in each of which a partition has one row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import WriteDemands
from wal_sink.targets.cassandra.casts import indices
from wal_sink.targets.cassandra.encode import distinct_keys
from wal_sink.targets.cassandra.feature import Agreement, Feature, Ints, Stamped
from wal_sink.targets.cassandra.fitness import Server
from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.targets.cassandra.row_options import IF_NOT_EXISTS
from wal_sink.targets.cassandra.row_plan import CassandraPlan, CassandraRowPlan
from wal_sink.targets.cassandra.table import alike


class IfNotExists(Feature):
    """`cassandra.ifNotExists`."""

    noted = "if_not_exists"
    demands = WriteDemands(one_session=True, target_dated=True)
    form: Mapping[str, Any] = {"condition": "IF NOT EXISTS", "stamped": False}

    def describe(self, options: CassandraOptions) -> Mapping[str, str]:
        """Say which row of a key stays."""
        if not options.if_not_exists:
            return {}
        return {
            "newest": f"the first row of a key, and what the table has already, stays ({IF_NOT_EXISTS})"
        }

    def refuse_server(self, server: Server, options: CassandraOptions) -> None:
        """Refuse a keyspace without conditional updates."""
        if options.if_not_exists and (why := server.why_no_conditions(options.keyspace)):
            raise SchemaMismatch(
                f"Keyspace {options.keyspace} {why}",
                f"Leave out {IF_NOT_EXISTS}, or write to a keyspace without tablets.",
            )

    def agree(self, details: CassandraRowPlan, agreed: Agreement) -> CassandraRowPlan:
        """Note it, for a table of which the first row of a key can be told."""
        if not agreed.options.if_not_exists:
            return details
        _refuse_no_condition(agreed)
        return msgspec.structs.replace(details, if_not_exists=True)

    def rounds(self, rows: Stamped, plan: CassandraPlan, lives: Ints | None) -> list[Ints]:
        """Send the first living row of each key, one of a partition at once."""
        return rounds(rows, plan, first_of_each_key(rows, plan, lives))


def _refuse_no_condition(agreed: Agreement) -> None:
    """Refuse a table of which the first row of a key cannot be told, where that one stays.

    Rows of a partition are written one after the other, so only partition keys have to be told apart.

    :raises SchemaMismatch: there are static columns; or two encodings of a partition key are one row.
    """
    live, columns = agreed.live, agreed.columns
    for column in columns:
        if column.role == "partition" and (why := alike(column, live)):
            raise SchemaMismatch(
                f"{column.name} of {live.name}: {why}, which are written beside each other, so that"
                f" {IF_NOT_EXISTS} could not say which one is first.",
                "Write a table whose partition key has another type, such as a frozen list.",
            )
    if static := [column.name for column in columns if column.role == "static"]:
        raise SchemaMismatch(
            f"Of {live.name} the DataFrame has the static columns {', '.join(static)}, and {IF_NOT_EXISTS} is"
            " true: each new row of a partition would write them, in no order.",
            "Write them by a query of their own, and drop them from this one.",
        )


def first_of_each_key(rows: Stamped, plan: CassandraPlan, lives: Ints | None = None) -> Ints:
    """Return the place of the first living row of each key, ascending.

    :param lives: seconds that are left to each row, 0 or less for none: it hides nothing, so it is left out.
        None: rows live for ever.
    """
    places = np.arange(len(rows.stamps)) if lives is None else np.flatnonzero(lives >= 1)
    _, firsts = np.unique(_numbers(rows, places, plan.of_table()), return_index=True)
    return places[np.sort(firsts)]


def rounds(rows: Stamped, plan: CassandraPlan, places: Ints) -> list[Ints]:
    """Divide places of rows into rounds; none for no row. Rows of a partition stay in their order."""
    if not len(places):
        return []
    columns = tuple(column for column in plan.columns if column.role == "partition")
    partitions = _numbers(rows, places, msgspec.structs.replace(plan, columns=columns))
    order = np.argsort(partitions, kind="stable")
    begins = np.flatnonzero(np.append(True, np.diff(partitions[order]) != 0))
    ranks = np.empty(len(places), np.int64)
    ranks[order] = np.arange(len(places)) - np.repeat(begins, np.diff([*begins, len(places)]))
    by_rank = np.argsort(ranks, kind="stable")
    return np.split(places[by_rank], np.flatnonzero(np.diff(ranks[by_rank])) + 1)


def _numbers(rows: Stamped, places: Ints, plan: CassandraPlan) -> Ints:
    """Return a number for each of the rows at some places, the same for those of one key."""
    return distinct_keys(rows.batch.take(indices(places)), plan).numbers
