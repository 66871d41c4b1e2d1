"""The plan: how a query's rows are written to a target's table. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

import msgspec
import pyarrow as pa

from wal_sink.model.codec import Record, digest, prepare_decoders

Role = Literal["partition", "clustering", "static", "regular", "required", "operation", "control"]
_UNWRITTEN = ("operation", "control")
"""The roles of columns that the table does not have."""

CREATES = "creates"
"""Key in `Plan.details` of the statement that creates a missing table."""

Operation = Literal["upsert", "delete"]


class Column(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A column of the DataFrame, and the column of the target that gets its values."""

    name: str
    source: str
    """Arrow type in the DataFrame as `str(pyarrow.DataType)`. Timestamps are in UTC."""
    type: str
    """Type of the target's column, as the target writes it."""
    role: Role
    """The role of the column in the target. A "required" column accepts no null, a "regular" column does.
    The table lacks the columns of the last two roles: "operation" holds upsert or delete, "control" holds
    another property of the row, such as its TTL."""
    column: str = ""
    """Name of the target's column; empty if the DataFrame's column has the same name."""

    @classmethod
    def like(cls, field: pa.Field) -> Self:
        """Return the column for a field, if the types of the target are Arrow's types."""
        return cls(name=field.name, source=str(field.type), type=str(field.type), role="regular")

    @property
    def in_table(self) -> str:
        """Return the name of the target's column."""
        return self.column or self.name


class Plan(Record, frozen=True, kw_only=True):
    """`plans/<target>-<key>.json`: how a query's rows are written to one target. A plan never changes."""

    key: str
    """Key of the plans of all targets. In the log it is their `content_key`, outside of the log their
    `plans_key`."""
    target: str
    table: str
    """Name of the table, qualified and quoted as the target writes it."""
    columns: tuple[Column, ...]
    """Columns in the order of the DataFrame."""
    operations: dict[str, Operation] = msgspec.field(default_factory=dict)
    """The operation for each value of the operation column; empty if there is no such column."""
    sent_once: bool = False
    """True if a row must not be sent twice with one write timestamp, since its list elements would be
    doubled. This holds for lists that are not frozen."""
    unavailable: str = ""
    """If a row has this text in a column, an upsert leaves the table's cell unchanged, see `targets.cdc`.
    Empty for none."""
    details: dict[str, Any] = msgspec.field(default_factory=dict)
    """Values that only this kind of target has. A target may derive a plan class that gives them types."""
    digest: str = ""
    """In the log, the digest of the plan without this field; empty outside of the log."""

    @property
    def operation(self) -> str | None:
        """Return the name of the column that holds upsert or delete; None if every row is an upsert."""
        return next((column.name for column in self.columns if column.role == "operation"), None)

    @property
    def creates(self) -> str:
        """Return the statement that creates the missing table; empty if the table exists.

        Only a plan of `Target.dry_plan` has such a statement.
        """
        return str(self.details.get(CREATES, ""))

    def that_creates(self, statement: str) -> Plan:
        """Return the plan with the statement that creates its missing table."""
        return msgspec.structs.replace(self, details=self.details | {CREATES: statement})

    def for_log(self, key: str) -> Plan:
        """Return the plan as the log keeps it: with this key, and with the digest of its content."""
        bare = msgspec.structs.replace(self, key=key, digest="")
        return msgspec.structs.replace(bare, digest=digest(bare.to_json()))

    def of_table(self) -> Self:
        """Return the plan without the columns that the table lacks."""
        columns = tuple(column for column in self.columns if column.role not in _UNWRITTEN)
        if len(columns) == len(self.columns):
            return self
        return msgspec.structs.replace(self, columns=columns)


class Agreed(Record, frozen=True, kw_only=True):
    """The plans in force, by which tasks check rows: `plans/agreed.json`.

    Each start of a run replaces the file.
    """

    key: str
    """Key of the schema and the options of these plans, see `plans_key`."""
    plans: dict[str, Plan]
    """Plan of each target by the target's name. All plans have one key."""
    compared: bool = True
    """True if the newest run has compared the plans with the tables."""


def content_key(plans: Mapping[str, Plan]) -> str:
    """Return a digest of the content of all plans. The manifest of an epoch names its plans by this key."""
    return digest(b"".join(name.encode() + plan.to_json() for name, plan in plans.items()))[:32]


def plans_key(schema: pa.Schema, targets: Mapping[str, tuple[str, Mapping[str, str]]]) -> str:
    """Return a digest of everything that the plans of a query depend on, except the tables.

    :param targets: by the target's name, its kind, and those of its options that change what is written.
    """
    keys = [(name, plan_key(schema, *target)) for name, target in sorted(targets.items())]
    return digest(msgspec.json.encode(keys))[:32]


def plan_key(schema: pa.Schema, target: str, shape: Mapping[str, str]) -> str:
    """Return a digest of everything that a plan depends on, except the table."""
    fields = [(field.name, str(field.type)) for field in schema]
    return digest(msgspec.json.encode([fields, target, sorted(shape.items())]))[:32]


prepare_decoders()
