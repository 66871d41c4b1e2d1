"""The columns of a Delta table: their types as its log writes them, its partitions, and what fits. No I/O.

Rows are cast and checked in the tasks of a query.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from wal_sink.model.plan import Column, Plan, is_array
from wal_sink.targets.arrow_values import beyond_python, text
from wal_sink.targets.casts import (
    cast,
    cast_or_refuse,
    is_castable,
    key_of,
    refuse,
    refuse_as_folder,
)
from wal_sink.targets.columns import TableColumn, TableRules, to_cast

_ARROW = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_SQL = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}
_DELTA = {type_: name for name, type_ in _ARROW.items()} | {
    pa.large_string(): "string",
    pa.large_binary(): "binary",
}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")

_TEXT = re.compile(r"(char|varchar)\((\d+)\)")
"""A text with a length, in characters. Delta's log has it as a string, and Spark's word for it beside."""

DECLARED = "__CHAR_VARCHAR_TYPE_STRING"
"""Under which name a column's metadata has that word."""

Json = Any
"""A type of Delta's log: a name, or an object for a nested one."""


def to_text(type_: Json) -> str:
    """Return a type as a plan keeps it; equal types have equal texts."""
    bare = _bare(type_)
    return bare if isinstance(bare, str) else msgspec.json.encode(bare, order="sorted").decode()


def _bare(type_: Json) -> Json:
    """Return a type without what shapes files alone, such as the names that columns have there."""
    if isinstance(type_, dict):
        return {name: _bare(part) for name, part in type_.items() if name != "metadata"}
    return [_bare(part) for part in type_] if isinstance(type_, list) else type_


def from_text(text: str) -> Json:
    """Return the type of a plan's text."""
    return msgspec.json.decode(text) if text.startswith("{") else text


def declared(field: dict[str, Json]) -> dict[str, Json]:
    """Return a column of Delta's log with the length of its texts as part of its type."""
    if field["type"] == "string" and DECLARED in field["metadata"]:
        return {**field, "type": field["metadata"][DECLARED]}
    return field


def fits_length(type_: Json, texts: pa.Array) -> pa.Array | None:
    """Return which texts have the length that a type asks for; None for a type without one."""
    if not isinstance(type_, str) or not (match := _TEXT.fullmatch(type_)):
        return None
    fits = pc.equal if match[1] == "char" else pc.less_equal
    return fits(pc.utf8_length(texts), int(match[2]))


def to_arrow(type_: Json, *, required: bool = False, stored: bool = False) -> pa.DataType | None:
    """Return the Arrow type of a type's values; None for one that is not written.

    :param required: whether it says which parts inside take no null. Values that are cast have a type without
        that: Arrow finds a null in each part of a struct that is null itself.
    :param stored: whether parts of structs have the names and ids that they have in the table's files.
    """
    if isinstance(type_, str):
        if match := _DECIMAL.fullmatch(type_):
            return pa.decimal128(int(match[1]), int(match[2]))
        return pa.string() if _TEXT.fullmatch(type_) else _ARROW.get(type_)

    def part(name: str, inner: Json, *, nullable: bool) -> pa.Field | None:
        arrow = to_arrow(inner, required=required, stored=stored)
        return arrow and pa.field(name, arrow, nullable or not required)

    match type_["type"]:
        case "array":
            element = part("element", type_["elementType"], nullable=type_["containsNull"])
            return element and pa.list_(element)
        case "map":
            key = to_arrow(type_["keyType"], required=required, stored=stored)
            value = part("value", type_["valueType"], nullable=type_["valueContainsNull"])
            return key and value and pa.map_(key, value)
        case "struct":
            fields = [
                stored_field(field)
                if stored
                else part(field["name"], field["type"], nullable=field["nullable"])
                for field in type_["fields"]
            ]
            # Parquet has no struct without fields.
            return pa.struct(fields) if fields and all(fields) else None
    return None


_PHYSICAL, _ID = "delta.columnMapping.physicalName", "delta.columnMapping.id"


def physical_name(field: dict[str, Json]) -> str:
    """Return the name that a column of Delta's log has in files, and in values of partitions."""
    return str(field["metadata"].get(_PHYSICAL, field["name"]))


def stored_field(field: dict[str, Json]) -> pa.Field | None:
    """Return a column as it is in the table's files; None if it is not written."""
    type_ = to_arrow(field["type"], stored=True)
    ids = {"PARQUET:field_id": str(field["metadata"][_ID])} if _ID in field["metadata"] else None
    return type_ and pa.field(physical_name(field), type_, metadata=ids)


def to_sql(type_: Json) -> str:
    """Return a type in words of Spark's SQL."""
    if isinstance(type_, str):
        return _SQL.get(type_, type_)
    match type_["type"]:
        case "array":
            return f"array<{to_sql(type_['elementType'])}>"
        case "map":
            return f"map<{to_sql(type_['keyType'])},{to_sql(type_['valueType'])}>"
    inner = ",".join(f"{field['name']}:{to_sql(field['type'])}" for field in type_["fields"])
    return f"struct<{inner}>"


def from_arrow(type_: pa.DataType) -> Json | None:
    """Return the type that holds an Arrow type of Spark's; None: Delta has none."""
    if pt.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    if is_array(type_):
        inner = from_arrow(type_.value_type)
        return inner and {"type": "array", "elementType": inner, "containsNull": True}
    if pt.is_map(type_):
        key, value = from_arrow(type_.key_type), from_arrow(type_.item_type)
        if not (key and value) or "timestamp_ntz" in to_text(key) + to_text(value):
            return None  # of such a map delta-rs 1.6.6 makes a table that no reader opens
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if pt.is_struct(type_):
        fields = [json_field(field) for field in type_]
        has_types = bool(fields) and all(field["type"] for field in fields)
        return {"type": "struct", "fields": fields} if has_types else None
    return _DELTA.get(type_)


def json_field(field: pa.Field) -> dict[str, Json]:
    """Return a column as a new table would have it."""
    type_ = from_arrow(field.type)
    return {"name": field.name, "type": type_, "nullable": True, "metadata": {}}


CAN_PARTITION = (
    "string",
    "long",
    "integer",
    "short",
    "byte",
    "boolean",
    "date",
    "timestamp",
    "timestamp_ntz",
)
"""Types of partition columns, beside decimals and texts with a length. Others have no text that every reader
takes alike."""

Values = tuple[str | None, ...]
"""The values of a partition, in the order of the table's partition columns."""


def can_partition(type_: Any) -> bool:
    """Return True if a table of wal_sink may be partitioned by columns of a type, as Delta's log has it."""
    return type_ in CAN_PARTITION or (
        isinstance(type_, str) and type_.startswith(("decimal", "char", "varchar"))
    )


def split(rows: pa.Table, names: Sequence[str]) -> Iterator[tuple[Values, pa.Table]]:
    """Yield the rows of each partition, without the partition columns; their order is kept."""
    if not names:
        yield (), rows
        return
    rows = rows.combine_chunks()
    numbered = rows.select(names).append_column("row", pa.array(range(len(rows)), pa.int64()))
    groups = numbered.group_by(list(names), use_threads=False).aggregate([("row", "list")])
    rest = rows.drop_columns(list(names))
    for group in range(groups.num_rows):
        values = tuple(_text(groups.column(name)[group]) for name in names)
        yield values, rest.take(groups.column("row_list")[group].values)


def folder(names: Sequence[str], values: Values) -> str:
    """Return the folder for files of a partition, as Hive names it: polars reads the values from there."""
    parts = [
        f"{name.replace('/', '%2F').replace(':', '%3A')}={_NULL if value is None else quote(value, safe='')}/"
        for name, value in zip(names, values, strict=True)
    ]
    return "".join(parts)


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def is_absolute(path: str) -> bool:
    """Return True if a path of a table's log, or the name of its first folder, leads out of the table."""
    return path.startswith("/") or _SCHEME.match(path) is not None


_NULL = "__HIVE_DEFAULT_PARTITION__"


def _text(scalar: pa.Scalar) -> str | None:
    """Return a value as the log of a Delta table writes it."""
    if pa.types.is_timestamp(scalar.type):
        return _moment(scalar.value, zoned=scalar.type.tz is not None) if scalar.is_valid else None
    value: Any = scalar.as_py()
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, datetime.date) else str(value)


def _moment(us: int, *, zoned: bool) -> str:
    """Return microseconds since 1970 as a time; in UTC and saying so, where it is one of all zones."""
    moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=us)  # noqa: DTZ001 -- UTC
    return moment.isoformat("T" if zoned else " ", "microseconds") + ("Z" if zoned else "")


def can_be_key(type_: Any) -> bool:
    """Return True if values of a type, as Delta's log has it, are equal or not: no NaN, nothing nested."""
    return isinstance(type_, str) and type_ not in ("float", "double")


PARTITIONS, EVENT = "partitions", "event"
"""The details of a plan: the partition columns in the table's order; and the column that says when a row
changed."""


class DeltaRules(TableRules):
    """What Delta says of types; statements of Spark's SQL.

    :param path: of the table.
    :param merges: whether the options let a start add columns.
    """

    def __init__(self, path: str, *, merges: bool) -> None:
        self._path = path
        self._merges = merges

    def about_type(self, field: pa.Field, column: TableColumn) -> Sequence[str]:
        """Compare the DataFrame's type with the Arrow type of the column's files."""
        sql = words(column.type)
        type_ = to_arrow(from_text(column.type), required=True)
        if type_ is None:
            problem = f"{field.name}: the table's type is {sql}, which wal_sink does not write."
            return [f"{problem} Leave it out of the DataFrame, or write to another table."]
        if is_castable(field.type, type_):
            return []
        return [self.types_differ(field, sql, f"{to_cast(field.name, sql)}.")]

    def to_add(self, field: pa.Field) -> str:
        """Return the option, and the statement."""
        type_ = from_arrow(field.type)
        option = "" if self._merges else "set delta.mergeSchema to true, or "
        add = f"ALTER TABLE delta.`{self._path}` ADD COLUMN {field.name}"
        return f"{option}run: {add} {to_sql(type_)};" if type_ else ""


def words(text: str) -> str:
    """Return a type as errors write it, of what a plan keeps."""
    return to_sql(from_text(text))


def table_columns(fields: Sequence[dict[str, Any]]) -> list[TableColumn]:
    """Return the columns of a table, of what Delta's log has of them."""
    return [
        TableColumn(field["name"], to_text(field["type"]), required=not field["nullable"])
        for field in fields
    ]


def holds(now: TableColumn, planned: Column) -> bool:
    """Return True if a column of another type holds each value that was planned for it."""
    return _holds(from_text(now.type), from_text(planned.type))


def _holds(wide: Json, narrow: Json) -> bool:
    if isinstance(wide, str) or isinstance(narrow, str):
        return bool(wide == narrow) or (
            isinstance(wide, str) and isinstance(narrow, str) and _is_wider(wide, narrow)
        )
    match wide["type"], narrow["type"]:
        case "array", "array":
            parts = [(wide["elementType"], narrow["elementType"])]
            nulls = [(wide["containsNull"], narrow["containsNull"])]
        case "map", "map":
            parts = [(wide[part], narrow[part]) for part in ("keyType", "valueType")]
            nulls = [(wide["valueContainsNull"], narrow["valueContainsNull"])]
        case "struct", "struct":
            fields = {field["name"]: field for field in wide["fields"]}
            former = {field["name"]: field for field in narrow["fields"]}
            if not former.keys() <= fields.keys():
                return False
            parts = [(fields[name]["type"], field["type"]) for name, field in former.items()]
            nulls = [  # a field that is new is null in each row
                (field["nullable"], name not in former or former[name]["nullable"])
                for name, field in fields.items()
            ]
        case _:
            return False
    return all(_holds(*pair) for pair in parts) and all(now or not was for now, was in nulls)


_DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 19}
"""Of the widest number of a type; from the narrowest to the widest."""


def _is_wider(wide: str, narrow: str) -> bool:
    if former := _TEXT.fullmatch(narrow):
        later = _TEXT.fullmatch(wide)
        if later is None:
            return wide == "string"
        return later[1] == "varchar" and int(later[2]) >= int(former[2])
    digits, scale = _digits(narrow)
    if decimal := _DECIMAL.fullmatch(wide):
        precision, places = int(decimal[1]), int(decimal[2])
        return digits > 0 and places >= scale and precision - places >= digits - scale
    if wide == "double":
        return narrow in ("float", "byte", "short", "integer")
    return narrow in _DIGITS and _DIGITS.get(wide, 0) > digits


def _digits(type_: str) -> tuple[int, int]:
    """Return the digits of a number, and those after the point; zeros for another type."""
    match = _DECIMAL.fullmatch(type_)
    return (int(match[1]), int(match[2])) if match else (_DIGITS.get(type_, 0), 0)


def about_partitions(
    schema: pa.Schema,
    fields: Sequence[dict[str, Any]],
    partitioned_by: Sequence[str],
    *,
    replaces: bool,
) -> Iterator[str]:
    """Yield why rows cannot be parted by the table's partition columns.

    :param fields: of the table, as Delta's log has them.
    :param replaces: whether rows are replaced by their keys.
    """
    if replaces and partitioned_by and is_absolute(partitioned_by[0]):
        yield (
            f"{partitioned_by[0]}: the table is partitioned by it, and delta-rs takes the part of a path"
            " before a colon for the name of a store. Partition by another column first, or rename it."
        )
    for field in fields:
        name = field["name"]
        if name in partitioned_by and name in schema.names and not can_partition(field["type"]):
            yield (
                f"{name}: the table is partitioned by it, and its type is {to_sql(field['type'])}. Partition"
                f" by one of {', '.join(map(to_sql, CAN_PARTITION))}, decimal."
            )
    if not set(schema.names) - set(partitioned_by):
        yield (
            "the DataFrame has only partition columns. Add one of the table's other columns, if only as a"
            " null."
        )


def about_moved(plan: Plan, partitioned_by: Sequence[str]) -> Iterator[str]:
    """Yield that the table has other partition columns than its plan says."""
    if list(partitioned_by) != (planned := plan.details[PARTITIONS]):
        yield f"its partition columns were {planned}, and are {list(partitioned_by)} now"


def check(batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
    """Cast a batch to the table's types; it keeps the order of its columns.

    :raises InvalidRow: a value does not fit its column, or cannot name a partition.
    """
    partitioned_by = plan.details[PARTITIONS]

    def stored(column: Column, values: pa.Array) -> pa.Array:
        array = _stored(column, values)
        if column.name == plan.details.get(EVENT):
            refuse(
                pc.is_null(array),
                "is null, and says when the row changed (delta.timestampColumn)",
                "Filter such rows out.",
            )
        if column.name in partitioned_by:
            _refuse_as_partition(array, column.name)
            if key_of(plan):
                _refuse_merged_partition(array)
        return array

    return cast(batch, plan, stored)


def _stored(column: Column, values: pa.Array) -> pa.Array:
    type_, sql = from_text(column.type), words(column.type)
    if _has_null(values, type_):
        inside = pa.array([_has_null(values.slice(i, 1), type_) for i in range(len(values))])
        refuse(inside, f"has a null inside of {sql}, which takes none", "Filter such rows out.")
    arrow = to_arrow(type_)
    assert arrow is not None, "the plan has only types that can be written"
    array = cast_or_refuse(values, arrow, sql)
    if (fits := fits_length(type_, array)) is not None:
        refuse(
            pc.invert(fits),
            f"has another length than {sql}",
            "Spark pads the texts of a char(n) to n characters, and refuses longer ones. Do so in the"
            " DataFrame, such as by F.rpad or F.substring, or filter by F.length('{name}').",
        )
    return array


def _refuse_as_partition(values: pa.Array, name: str) -> None:
    if (beyond := beyond_python(values)) is not None:
        refuse(
            beyond,
            "is outside of the years 1 to 9999, and Delta has no text of it, which a partition needs",
            "Filter such rows out; most often the unit is wrong.",
        )
    if pt.is_string(values.type):
        refuse(
            pc.equal(values, text("")),
            "is an empty text, which Delta keeps as a null of a partition",
            "Write a null or another text: F.when(F.col('{name}') != '', …).",
        )
        refuse_as_folder(values, name)


def _refuse_merged_partition(values: pa.Array) -> None:
    """Refuse what delta-rs (1.6.6) cannot merge: it writes the files of a merge, and reads those before."""
    if pt.is_decimal(values.type) and values.type.scale:
        refuse(
            pc.less(values, text("0").cast(values.type)),
            "is negative, and delta-rs cannot read it as a partition",
            "Partition the table by another column, or filter such rows out.",
        )


def _has_null(array: pa.Array, type_: Json) -> bool:
    """Return True if something inside of nested values is null where the table takes none."""
    if isinstance(type_, str) or not len(array):
        return False
    array = array.drop_null()
    match type_["type"]:
        case "array":
            parts = [(array.flatten(), type_["elementType"], type_["containsNull"])]
        case "map":
            lists = array.cast(pa.list_(pa.struct([*array.type.field(0).type])))
            entries = lists.flatten()
            parts = [
                (entries.field(0), type_["keyType"], True),
                (entries.field(1), type_["valueType"], type_["valueContainsNull"]),
            ]
        case _:
            inner = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
            parts = [
                (inner[field["name"]], field["type"], field["nullable"])
                for field in type_["fields"]
                if field["name"] in inner  # else it takes nulls: the plan was refused otherwise
            ]
    return any(
        (part.null_count and not nullable) or _has_null(part, inner)
        for part, inner, nullable in parts
    )
