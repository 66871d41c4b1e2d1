"""What was agreed with Cassandra about rows: typed, and kept in the log as a plan's details. Pure."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec
import pyarrow as pa

from wal_sink.errors import CorruptLog
from wal_sink.model.plan import Plan
from wal_sink.targets.sql_text import quote

MAX_TTL_S = 20 * 365 * 86_400
"""The largest TTL that Cassandra takes, in seconds."""

KEY = ("partition", "clustering")
"""The roles of columns of the primary key."""


class TableName(NamedTuple):
    """The exact names of a table and its keyspace, unquoted, as `system_schema` has them."""

    keyspace: str
    table: str

    def __str__(self) -> str:
        """Quote both, as they stand in statements, plans and errors."""
        return f"{quote(self.keyspace)}.{quote(self.table)}"


class RowTtl(msgspec.Struct, frozen=True, kw_only=True):
    """When rows expire."""

    ttl_s: int | None = None
    """The TTL of every row, seconds."""
    ttl_column: str = ""
    """The column with the TTL of each row in seconds."""
    expires_at_column: str = ""
    """The column of times at which rows expire."""


class CassandraRowPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How the rows of a plan are written. Columns have the DataFrame's names.

    Defaults are written out: msgspec recognizes a default by identity, so two equal plans of two processes
    would else have two keys.
    """

    keyspace: str
    table: str
    nulls: Literal["unset", "write"] = "unset"
    update: bool = False
    """True for rows that are written by UPDATE."""
    clustering: tuple[str, ...] = ()
    """Where there are deletes: the clustering columns in the table's order, which is not the DataFrame's."""
    ttl: RowTtl | None = None
    """None: no option says when rows expire."""
    timestamp_column: str = ""
    """The column of event times; empty: a row's place in the stream decides."""
    types: dict[str, tuple[tuple[str, str], ...]] = msgspec.field(default_factory=dict)
    """The user-defined types of the columns by name: the names and types of their fields, in order."""

    @property
    def name(self) -> TableName:
        """The table."""
        return TableName(self.keyspace, self.table)


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
        # Plans come from a shared folder, and this stands in statements.
        return cls(**fields | {"details": details, "table": str(details.name)})

    @property
    def plain(self) -> Plan:
        """The plan as the log has it: plain data."""
        fields = {name: getattr(self, name) for name in Plan.__struct_fields__}
        details = msgspec.json.decode(msgspec.json.encode(self.details))
        return Plan(**fields | {"details": details})

    @property
    def static_alone(self) -> bool:
        """True if rows are partitions: static columns are written, and the plan has no clustering column."""
        roles = {column.role for column in self.columns}
        return self.details.update and "clustering" not in roles


def in_order(columns: dict[str, pa.Array], plan: CassandraPlan) -> pa.RecordBatch:
    """Return columns in the plan's order, and after them those that only the log has."""
    names = [column.name for column in plan.columns if column.name in columns]
    names += [name for name in columns if name not in names]
    return pa.RecordBatch.from_arrays([columns[name] for name in names], names=names)
