"""What a row feature is: hooks for each stage of a row's way, which do nothing unless a feature has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.model.plan import Column
from wal_sink.targets.arrow_values import FALSE, not_deleted
from wal_sink.targets.cassandra.casts import as_is
from wal_sink.targets.cassandra.fitness import Server
from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.targets.cassandra.row_plan import CassandraPlan, CassandraRowPlan
from wal_sink.targets.cassandra.rules import InvalidValue, Reason, refuse_invalid
from wal_sink.targets.cassandra.table import TableMetadata

Ints = npt.NDArray[np.int64]

EXPIRED, UPSERT = -2, -1
"""The kinds of rows that are upserts: a row whose life is over is written as it is afterwards. The kind of a
delete is the number of clustering columns that it has."""


class Stamped(NamedTuple):
    """Rows with their write timestamps."""

    batch: pa.RecordBatch
    stamps: Ints
    """Microseconds since 1970, one for each row."""


class Agreement(NamedTuple):
    """What is agreed on with one table."""

    options: CassandraOptions
    server: Server
    live: TableMetadata
    columns: tuple[Column, ...]
    """Those of the table that the DataFrame has."""


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

        :param reasons: `{name}` stands for the column in what to do.
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


class Feature:
    """Something that options ask for, of rows. It has no state, and its modules do not import the driver.

    Its options are declared in `row_options`, its details of a plan in `row_plan`.
    """

    noted = ""
    """The detail of a plan's rows that says whether they are written with the feature, see `used`."""

    # --- when a query starts ---

    def describe(self, options: CassandraOptions) -> Mapping[str, str]:
        """Return what is logged when a query starts: texts by heading."""
        return {}

    def written(
        self, schema: pa.Schema, options: CassandraOptions, known: set[str], place: str
    ) -> pa.Schema:
        """Return the columns of a DataFrame without those that only say what becomes of a row.

        :param known: the DataFrame's names of the columns that the table has.
        :param place: the table, as errors show it.
        :raises SchemaMismatch: such a column is missing, or has another type, or the table has it, too.
        """
        return schema

    def agree(self, details: CassandraRowPlan, agreed: Agreement) -> CassandraRowPlan:
        """Return the details of a table's plan with those of the feature.

        :raises SchemaMismatch, OptionError: table, DataFrame and options do not fit together.
        """
        return details

    # --- in the tasks, and at each connection ---

    def used(self, plan: CassandraPlan) -> bool:
        """Whether rows are written with the feature. The hooks below are for such plans."""
        return bool(getattr(plan.details, self.noted))

    def read(self, rows: TaskRows) -> None:
        """Read the columns that say what becomes of a row.

        :raises InvalidRow: one of them is invalid.
        """

    def refuse_drift(self, plan: CassandraPlan, live: TableMetadata) -> None:
        """Refuse a table that was altered so that rows cannot be written any more; also at the start.

        :raises SchemaMismatch: it was.
        """

    # --- in the flush ---

    def dated(self, rows: Stamped) -> Stamped:
        """Return rows of the log with the write timestamps that they are to have."""
        return rows

    def seconds_left(
        self, rows: Stamped, plan: CassandraPlan, now_s: Callable[[], int], default_ttl_s: int
    ) -> Ints | None:
        """Return the seconds that are left to each row, 0 or less for none; None: it does not say.

        Asked of every feature, since the table alone can say it.

        :param now_s: asks for the second from which lives are counted.
        :param default_ttl_s: of the table, for rows of which no option says anything; 0: for ever.
        """
        return None

    def kinds(self, batch: pa.RecordBatch, plan: CassandraPlan, kinds: Ints) -> Ints:
        """Return the kinds of the rows' statements, of those that they have so far."""
        return kinds
