"""What was agreed with Cassandra about a query's rows: typed, and kept in the log as a plan's details. Pure.

The plan that the log has for several tables has the columns of the DataFrame, as the segments have them, and
the plan of each table, by which rows are checked and written as if there were no other table.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec
import pyarrow as pa

from wal_sink.errors import CorruptLog
from wal_sink.model.plan import Column, Plan
from wal_sink.targets.names import quote

MOST_TTL_S = 20 * 365 * 86_400
"""The longest life that Cassandra takes, in seconds."""

ADDED_COLUMN = "wal_sink_added"
"""The column of the table that says, of each row, what is in its totals."""

KEY = ("partition", "clustering")
"""The roles of columns of the primary key."""

Change = Literal["add", "remove"]
"""What is done to a collection that is not written whole."""

IndexedPart = Literal["value", "elements", "keys", "values", "entries"]


class TableName(NamedTuple):
    """The exact names of a table and its keyspace, unquoted, as `system_schema` has them."""

    keyspace: str
    table: str

    def __str__(self) -> str:
        """Quote both, as they stand in statements, plans and errors."""
        return f"{quote(self.keyspace)}.{quote(self.table)}"


class IndexRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one index takes of one column."""

    column: str
    """As the DataFrame calls it."""
    index: str
    """Name of the index, unquoted."""
    part: IndexedPart = "value"
    """What is indexed: the whole value, or each element, key, value or entry of a collection."""
    most_bytes: int = 0
    """Most bytes of it; 0: any number."""
    vector: Literal["", "finite", "cosine"] = ""
    """What is required of a vector: finite elements; or, to be compared by cosine, a direction as well."""


class Lives(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How long rows live, and what the server takes."""

    ttl_s: int | None = None
    """The life of every row, seconds."""
    ttl_column: str = ""
    """The column of seconds that each row lives."""
    expires_column: str = ""
    """The column of times at which rows expire."""
    latest_s: int = 0
    """The last second at which a life may end, since 1970; 0: it is not known."""
    most_ttl_s: int = MOST_TTL_S
    """The longest life that the server took when the plan was made, seconds."""


class CassandraRowPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the rows of a plan are written. Columns have the DataFrame's names."""

    keyspace: str
    table: str
    """Its name; of several the names of all, comma-separated."""
    nulls: Literal["unset", "write"] = "unset"
    update: bool = False
    """Whether rows are written by UPDATE."""
    changes: dict[str, Change] = msgspec.field(default_factory=dict)
    """What is done to collections that are not written whole, by column."""
    clustering: tuple[str, ...] = ()
    """Where there are deletes: the clustering columns in the table's order, which is not the DataFrame's."""
    lives: Lives | None = None
    """None: the options do not say how long rows live."""
    event_column: str = ""
    """The column of event times; empty: a row's place in the stream decides."""
    if_not_exists: bool = False
    """Whether a row is written only where there is none of its key."""
    added: tuple[str, ...] = ()
    """The columns whose values are added to what the table holds."""
    types: dict[str, tuple[tuple[str, str], ...]] = msgspec.field(default_factory=dict)
    """The user-defined types of the columns by name: the names and types of their fields, in order."""
    indexes: tuple[IndexRule, ...] = ()
    """What indexes of the table refuse."""
    table_column: str = ""
    """The column that names the one of `tables` that a row goes to; empty: each row goes to every one."""
    tables: tuple[OneOfSeveral, ...] = ()
    """Empty for a plan of one table."""
    among: str = ""
    """Of one of several tables: the names of all, comma-separated."""

    @property
    def name(self) -> TableName:
        """The table, where it is one."""
        return TableName(self.keyspace, self.table)


class OneOfSeveral(msgspec.Struct, frozen=True):
    """The plan of one of several tables."""

    columns: tuple[Column, ...]
    """Those that the table has, and those that say what becomes of a row."""
    rows: CassandraRowPlan


msgspec.json.Decoder(CassandraRowPlan)  # learned while one thread imports this, see `codec.learn`


class CassandraPlan(Plan, frozen=True, kw_only=True):
    """A plan with the type of its details."""

    details: CassandraRowPlan  # type: ignore[assignment]  # the same JSON, typed

    @classmethod
    def of(cls, plan: Plan) -> CassandraPlan:
        """Return a plan of the log.

        :raises CorruptLog: its details are not what this target notes.
        """
        if isinstance(plan, cls):
            return plan
        try:
            details = msgspec.convert(plan.details, CassandraRowPlan)
        except msgspec.ValidationError as error:
            raise CorruptLog(
                f"The details of plan {plan.key} cannot be read: {error}",
                "Restore the file in the log's plans/ folder from a copy.",
            ) from error
        fields = {name: getattr(plan, name) for name in Plan.__struct_fields__}
        if not details.tables:  # plans come from a shared folder, and this stands in statements
            fields["table"] = str(details.name)
        return cls(**fields | {"details": details})

    @property
    def plain(self) -> Plan:
        """The plan as the log has it: plain data."""
        fields = {name: getattr(self, name) for name in Plan.__struct_fields__}
        details = msgspec.json.decode(msgspec.json.encode(self.details))
        return Plan(**fields | {"details": details})

    @property
    def static_alone(self) -> bool:
        """Whether rows are partitions: static columns are written, and no clustering column is known."""
        return self.details.update and not any(each.role == "clustering" for each in self.columns)

    @property
    def indexed_columns(self) -> list[Column]:
        """The columns into which values are written, not only taken out of."""
        changes = self.details.changes
        return [column for column in self.columns if changes.get(column.name) != "remove"]

    @property
    def tables(self) -> tuple[CassandraPlan, ...]:
        """The plan of each table; of one table itself."""
        if not self.details.tables:
            return (self,)
        return tuple(
            msgspec.structs.replace(
                self,
                table=str(each.rows.name),
                columns=each.columns,
                details=each.rows,
            )
            for each in self.details.tables
        )

    def taking_out(self) -> CassandraPlan:
        """Return the plan with elements taken out where it adds them: those of rows whose life is over."""
        changes: dict[str, Change] = dict.fromkeys(self.details.changes, "remove")
        return self.noting(changes=changes)

    def noting(self, **changed: object) -> CassandraPlan:
        """Return the plan with other details."""
        return msgspec.structs.replace(
            self, details=msgspec.structs.replace(self.details, **changed)
        )


def columns_of(batch: pa.RecordBatch, plan: Plan, table: Plan) -> pa.RecordBatch:
    """Return the batch without the columns that a table does not have.

    :param plan: the one that the log has, by which the batch was made.
    :param table: one of its `tables`.
    """
    lacking = {column.name for column in plan.columns} - {column.name for column in table.columns}
    if not lacking:
        return batch
    return batch.select([name for name in batch.schema.names if name not in lacking])


def in_order(found: dict[str, pa.Array], plan: CassandraPlan) -> pa.RecordBatch:
    """Return columns in the plan's order, and behind them those that only the log has."""
    names = [column.name for column in plan.columns if column.name in found]
    names += [name for name in found if name not in names]
    return pa.RecordBatch.from_arrays([found[name] for name in names], names=names)
