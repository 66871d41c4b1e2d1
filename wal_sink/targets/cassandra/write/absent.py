"""Makes requests of rows that are written where there is none of their key: one for the first row of each.

A batch with conditions is taken as a whole or not at all, so each row is a request by itself. Of the rows of
a key that wait together the first one alone is sent: once it is acknowledged there is a row, from here or
from elsewhere, and the others would change nothing.

The server agrees on such rows one after the other within a partition; several at once would be in each
other's way, and time out. So requests come in rounds, in each of which a partition has one row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from wal_sink.model.plan import Plan
from wal_sink.targets.cassandra.encode import views
from wal_sink.targets.cassandra.encode.keys import distinct_keys
from wal_sink.targets.cassandra.write.bind import bind
from wal_sink.targets.cassandra.write.slice_buffer import Stamped
from wal_sink.targets.cassandra.write.statements import Statements

Ints = npt.NDArray[np.int64]


def absent_requests(
    statements: Statements, rows: Stamped, plan: Plan, lives: Ints | None
) -> Iterator[list[Any]]:
    """Yield requests for the first living row of each key, in rounds.

    :param plan: of the rows' table.
    :param lives: seconds that are left to each row, 0 or less for none: it hides nothing, so it is left out.
        None: rows live for ever.
    """
    found = rounds(rows, plan, first_of_each_key(rows, plan, lives))
    if not found:
        return
    places = np.concatenate(found)
    these = Stamped(rows.batch.take(views.indices(places)), rows.stamps[places])
    (part,) = statements.divide(these, None if lives is None else lives[places])
    ttls = None if part.ttls is None else part.ttls.tolist()
    values = iter(bind(part.rows.batch, part.statement.plan, None, ttls=ttls).values)
    for each in found:
        yield [part.statement.prepared.bind(next(values)) for _ in each]


def first_of_each_key(rows: Stamped, plan: Plan, lives: Ints | None = None) -> Ints:
    """Return the place of the first living row of each key, ascending."""
    places = np.arange(len(rows.stamps)) if lives is None else np.flatnonzero(lives >= 1)
    _, firsts = np.unique(_numbers(rows, places, plan.of_table()), return_index=True)
    return places[np.sort(firsts)]


def rounds(rows: Stamped, plan: Plan, places: Ints) -> list[Ints]:
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


def _numbers(rows: Stamped, places: Ints, plan: Plan) -> Ints:
    """Return a number for each of the rows at some places, the same for those of one key."""
    return distinct_keys(rows.batch.take(views.indices(places)), plan).numbers
