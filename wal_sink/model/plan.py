"""The plan: what was agreed with the target about a query's rows; Spark's names of types. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, Self

import msgspec
import pyarrow as pa

from wal_sink.model.codec import Record, digest, learn

Role = Literal["partition", "clustering", "static", "regular", "required", "operation", "control"]
_UNWRITTEN = ("operation", "control")
"""The roles of columns that are not written."""

CREATES = "creates"
"""The detail of a table that is missing: the statement that makes it; `Plan.creates` asks for it."""

Operation = Literal["upsert", "delete"]


class Column(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A column of the DataFrame, and the column of the target that it is written to."""

    name: str
    source: str
    """Arrow type in the DataFrame, as `str(pyarrow.DataType)`, timestamps in UTC."""
    type: str
    """Type in the target, in the target's words."""
    role: Role
    """What the target says of the column: "required" takes no null, "regular" does. The table has no column
    of the last two: "operation" says whether the row is an upsert or a delete, "control" says something else
    of it, such as to which table it goes, or its TTL."""
    column: str = ""
    """Name in the target, where it is another one than in the DataFrame."""

    @classmethod
    def like(cls, field: pa.Field) -> Self:
        """Return a column of a target whose types are Arrow's."""
        return cls(name=field.name, source=str(field.type), type=str(field.type), role="regular")

    @property
    def in_table(self) -> str:
        """The name of the target's column."""
        return self.column or self.name


class Plan(Record, frozen=True, kw_only=True):
    """`plans/<key>.json`: what was agreed with the target, as plain data; immutable."""

    key: str
    """In the log: `content_key`."""
    target: str
    table: str
    """Qualified and quoted as the target writes it."""
    columns: tuple[Column, ...]
    """In the order of the DataFrame."""
    operations: dict[str, Operation] = msgspec.field(default_factory=dict)
    """What each word of the operation column means; empty without such a column."""
    sent_once: bool = False
    """True if a row must not be sent twice with one write timestamp, since it would be doubled:
    lists that are not frozen."""
    unavailable: str = ""
    """The text of a cell that an upsert leaves as it is, see `targets.unavailable`; empty: no text is one."""
    details: dict[str, Any] = msgspec.field(default_factory=dict)
    """What else the target has noted; a target may derive a plan that gives it a type."""

    @property
    def operation(self) -> str | None:
        """The name of the column that says what a row does; None: every row is an upsert."""
        return next((column.name for column in self.columns if column.role == "operation"), None)

    @property
    def creates(self) -> str:
        """The statement by which a start would make the table; empty where there is one.

        Only a plan that was made to be shown has it (`Target.dry_plan`).
        """
        return str(self.details.get(CREATES, ""))

    def that_creates(self, statement: str) -> Plan:
        """Return the plan as one whose table is missing, for `wal_sink.check`."""
        return msgspec.structs.replace(self, details=self.details | {CREATES: statement})

    def of_table(self) -> Self:
        """Return the plan without the columns that are not written: what the table has of it."""
        columns = tuple(column for column in self.columns if column.role not in _UNWRITTEN)
        if len(columns) == len(self.columns):
            return self
        return msgspec.structs.replace(self, columns=columns)


class Agreed(Record, frozen=True, kw_only=True):
    """`plans/agreed.json`: the plans by which tasks check rows; replaced as a run starts."""

    key: str
    """Of the schema and the options for which they were made: `several_plans_key`."""
    plans: dict[str, Plan]
    """By the target's name; the only one has none. All have one key."""
    compared: bool = True
    """True if the run that started last has compared them with the tables."""


def content_key(plans: Mapping[str, Plan]) -> str:
    """Digest of all that plans say: the same key means the same plans. An epoch names them by it."""
    return digest(b"".join(name.encode() + plan.to_json() for name, plan in plans.items()))[:32]


def several_plans_key(
    schema: pa.Schema, targets: Mapping[str, tuple[str, Mapping[str, str]]]
) -> str:
    """Digest of all that the plans of a query's targets depend on, beside the tables.

    :param targets: by name, what each is and its options that shape statements. The only one has no name.
    """
    if (alone := targets.get("")) is not None:
        return plan_key(schema, *alone)
    shape = {f"{name}.target": target for name, (target, _) in targets.items()}
    for name, (_, options) in targets.items():
        shape |= {f"{name}.{option}": value for option, value in options.items()}
    return plan_key(schema, "", shape)


def plan_key(schema: pa.Schema, target: str, shape: Mapping[str, str]) -> str:
    """Digest of all that a plan depends on, beside the table."""
    fields = [(field.name, str(field.type)) for field in schema]
    return digest(msgspec.json.encode([fields, target, sorted(shape.items())]))[:32]


learn()


_PLAIN = {
    pa.string(): "string",
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.uint8(): "smallint",  # Spark has none without a sign: the next that holds it
    pa.uint16(): "int",
    pa.uint32(): "bigint",
    pa.uint64(): "decimal(20,0)",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.time64("ns"): "time",
    pa.duration("us"): "interval day to second",
    pa.binary(): "binary",
}


def canonical(source: pa.DataType) -> pa.DataType:  # noqa: PLR0911 -- a case each
    """Return one type for all that mean the same, however Arrow lays them out and names their parts."""
    if pa.types.is_dictionary(source):
        return canonical(source.value_type)
    if pa.types.is_large_string(source) or pa.types.is_string_view(source):
        return pa.string()
    if pa.types.is_large_binary(source) or pa.types.is_binary_view(source):
        return pa.binary()
    if pa.types.is_timestamp(source) and source.tz is not None:
        return pa.timestamp(source.unit, "UTC")
    if is_array(source):
        return pa.list_(canonical(source.value_type))
    if pa.types.is_map(source):
        return pa.map_(canonical(source.key_type), canonical(source.item_type))
    if pa.types.is_struct(source):
        return pa.struct([pa.field(field.name, canonical(field.type)) for field in fields(source)])
    return source


def is_array(source: pa.DataType) -> bool:
    """Return True if Spark calls the type an array."""
    return bool(pa.types.is_list(source) or pa.types.is_large_list(source))


def is_text(source: pa.DataType) -> bool:
    """Return True if this is a string, in any of Arrow's layouts."""
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(kind(source) for kind in kinds)


def is_blob(source: pa.DataType) -> bool:
    """Return True if this is binary, in any of Arrow's layouts."""
    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    return any(kind(source) for kind in (*kinds, pa.types.is_fixed_size_binary))


def fields(source: pa.DataType) -> list[pa.Field]:
    """Return the fields of a struct."""
    return [source.field(i) for i in range(source.num_fields)]


def spark_type(source: pa.DataType) -> str:
    """Return Spark's name of an Arrow type, without parameters; Arrow's own where Spark has none."""
    source = canonical(source)
    if pa.types.is_decimal(source):
        return "decimal"
    if is_array(source) or pa.types.is_map(source) or pa.types.is_struct(source):
        return spark_ddl(source)
    if pa.types.is_timestamp(source):
        return "timestamp_ntz" if source.tz is None else "timestamp"
    if pa.types.is_fixed_size_binary(source):
        return "binary"
    return _PLAIN.get(source, str(source))


def spark_ddl(source: pa.DataType) -> str:
    """Return the type as Spark's `cast` takes it."""
    source = canonical(source)
    if pa.types.is_decimal(source):
        return f"decimal({source.precision},{source.scale})"
    if is_array(source):
        return f"array<{spark_ddl(source.value_type)}>"
    if pa.types.is_map(source):
        return f"map<{spark_ddl(source.key_type)},{spark_ddl(source.item_type)}>"
    if pa.types.is_struct(source):
        return struct_ddl([(field.name, spark_ddl(field.type)) for field in fields(source)])
    return spark_type(source)


def struct_ddl(named: list[tuple[str, str]]) -> str:
    """Return Spark's struct of names and types."""
    return f"struct<{','.join(f'{_quoted(name)}:{ddl}' for name, ddl in named)}>"


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else f"`{name.replace('`', '``')}`"
