"""The row features of Cassandra: what options can ask for of rows, one module each.

Each stage of a row's way calls the functions of those that take part in it: the plan (`plan`), the tasks
(`check`) and the flush (`write/`). What they read from columns of the DataFrame goes through `TaskRows`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.targets.arrow_values import FALSE, not_deleted
from wal_sink.targets.cassandra.casts import as_is
from wal_sink.targets.cassandra.row_plan import CassandraPlan
from wal_sink.targets.cassandra.rules import InvalidValue, Reason, refuse_invalid

Ints = npt.NDArray[np.int64]

EXPIRED, UPSERT = -2, -1
"""The kinds of rows that are upserts: a row whose life is over is written as it is afterwards. The kind of a
delete is the number of clustering columns that it has."""


class Stamped(NamedTuple):
    """Rows with their write timestamps."""

    batch: pa.RecordBatch
    stamps: Ints
    """Microseconds since 1970, one for each row."""


class TaskRows:
    """The rows of one batch in a task of the query, on their way into the log.

    :param given: the DataFrame's columns.
    """

    def __init__(self, given: pa.RecordBatch, plan: CassandraPlan) -> None:
        self.given = given
        self.plan = plan
        self.table = plan.of_table()
        """The plan's columns that the table has."""
        self.rows = given.select([column.name for column in self.table.columns])
        """These columns, before they are cast."""
        self.deletes: pa.Array | None = None
        """Which rows are deletes; None: no row is one."""
        self.controls: dict[str, pa.Array] = {}
        """What the log has beside them, by column."""

    def whole_numbers(self, name: str) -> pa.Array:
        """Return a column of numbers or instants as int64."""
        return as_is(self.given.column(name)).cast(pa.int64())

    def refuse(self, option: str, name: str, reasons: Iterable[Reason]) -> None:
        """Refuse values of a column that an option names.

        :raises InvalidRow: there is one.
        """
        given = as_is(self.given.column(name))
        for bad, problem, remedy in reasons:
            what = f"{problem} ({option})"
            invalid = InvalidValue.first(bad, name, given, what, remedy.replace("{name}", name))
            refuse_invalid(self.given, self.plan, invalid)


def are_bad(flags: pa.Array, deletes: pa.Array | None = None) -> pa.Array:
    """Return which rows are flagged and no deletes; nulls are not."""
    return not_deleted(pc.fill_null(flags, FALSE), deletes)
