"""The typed details of a Cassandra plan. The log stores them in the plan as JSON."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from wal_sink.errors import CorruptLog
from wal_sink.model.plan import Plan
from wal_sink.targets.ddl import quote

MAX_TTL_S = 20 * 365 * 86_400
"""The largest TTL that Cassandra accepts, in seconds."""

KEY = ("partition", "clustering")
"""The roles of the columns of the primary key."""

TTL_S = "wal_sink:ttl_s"
"""The log's column of TTLs, in seconds from the time of publishing; null for a delete."""
EXPIRES_US = "wal_sink:expires_us"
"""The log's column of expiry times: microseconds since 1970; null for a delete."""
TIMESTAMP_US = "wal_sink:timestamp_us"
"""The log's column of event times: microseconds since 1970. A timestamp column of the table has only
milliseconds."""


class TableName(NamedTuple):
    """The exact, unquoted names of a keyspace and a table."""

    keyspace: str
    table: str

    def __str__(self) -> str:
        """Return the quoted names, as statements need them."""
        return f"{quote(self.keyspace)}.{quote(self.table)}"


class CassandraRowPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The details of a plan. Columns have the DataFrame's names.

    The JSON includes default values. msgspec could leave them out, but it compares values with defaults by
    identity, so two processes could encode equal plans differently.

    An unknown field makes a plan unreadable. If it were ignored, rows would be written without the TTL or the
    write mode that the field sets.
    """

    keyspace: str
    table: str
    nulls: Literal["unset", "write"] = "unset"
    update: bool = False
    """True if rows are written by UPDATE."""
    clustering: tuple[str, ...] = ()
    """The clustering columns in the table's order, if rows may be deletes; empty if all rows are upserts."""
    ttl_s: int | None = None
    """The TTL of all rows in seconds. At most one of this field and the next two fields is set."""
    ttl_column: str = ""
    """The column with the TTL of each row in seconds."""
    expires_at_column: str = ""
    """The column with the time at which each row expires."""
    timestamp_column: str = ""
    """The column of event times. If empty, the later of two rows in the stream replaces the earlier row."""
    types: dict[str, tuple[tuple[str, str], ...]] = msgspec.field(default_factory=dict)
    """The user-defined types of the columns by name. A type has the name and the CQL type of each field."""

    @property
    def name(self) -> TableName:
        """The name of the table."""
        return TableName(self.keyspace, self.table)


msgspec.json.Decoder(CassandraRowPlan)  # at import, by one thread: see `codec.learn`


class CassandraPlan(Plan, frozen=True, kw_only=True):
    """A plan whose details are a `CassandraRowPlan`."""

    details: CassandraRowPlan  # type: ignore[assignment]  # the same JSON, typed

    @classmethod
    def of(cls, plan: Plan) -> CassandraPlan:
        """Return a plan of the log with typed details.

        :raises CorruptLog: the plan does not have the details of a Cassandra plan.
        """
        if isinstance(plan, cls):
            return plan
        try:
            details = msgspec.convert(plan.details, CassandraRowPlan)
        except msgspec.ValidationError as error:
            raise CorruptLog(
                f"The details of plan {plan.key} cannot be read: {error}",
                "If another version of wal_sink wrote the plan, flush with that version. Otherwise restore"
                " the file in the log's plans/ folder from a copy.",
            ) from error
        fields = {name: getattr(plan, name) for name in Plan.__struct_fields__}
        # Statements contain the table's name, and the log's file may be forged. So the name is quoted again.
        return cls(**fields | {"details": details, "table": str(details.name)})

    @property
    def plain(self) -> Plan:
        """The plan with untyped details, as the log stores it."""
        fields = {name: getattr(self, name) for name in Plan.__struct_fields__}
        details = msgspec.json.decode(msgspec.json.encode(self.details))
        return Plan(**fields | {"details": details})

    @property
    def writes_partitions(self) -> bool:
        """True if rows are written by UPDATE, without clustering columns. Then each row is a partition."""
        roles = {column.role for column in self.columns}
        return self.details.update and "clustering" not in roles
