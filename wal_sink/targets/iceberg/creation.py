"""Tables that are made on request, and columns that are added to one."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, TableAlreadyExistsError
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException, _pyarrow_to_schema_without_ids
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.transforms import Transform, UnknownTransform, parse_transform

from wal_sink.errors import OptionError, SchemaMismatch
from wal_sink.model.plan import canonical
from wal_sink.targets.iceberg.table import FORMAT


def with_missing(table: Table, schema: pa.Schema) -> UpdateSchema | None:
    """Return the change that adds a DataFrame's new columns to the table, which take nulls; not yet made.

    :returns: None: the table has all columns.
    :raises SchemaMismatch: Iceberg has no type for one.
    """
    there = {each.name for each in table.schema().fields}
    new = pa.schema([field for field in schema if field.name not in there])
    return table.update_schema().union_by_name(iceberg_schema(new)) if len(new) else None


def iceberg_schema(schema: pa.Schema, required: Sequence[str] = ()) -> Schema:
    """Return a DataFrame's columns as a table's; those of a key are its identifier.

    :raises SchemaMismatch: Iceberg has no type for one.
    """
    fields = []
    for field in schema:
        nullable = field.name not in required
        fields.append(pa.field(field.name, _made(field), nullable=nullable))
    made = assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(pa.schema(fields)))
    return Schema(
        *made.fields, identifier_field_ids=[made.find_field(name).field_id for name in required]
    )


def _made(field: pa.Field) -> pa.DataType:
    """Return the Arrow type of a new column.

    :raises SchemaMismatch: Iceberg has no such type.
    """
    type_ = canonical(field.type)
    try:
        _pyarrow_to_schema_without_ids(pa.schema([pa.field(field.name, type_)]))
    except (UnsupportedPyArrowTypeException, TypeError, ValueError) as error:
        raise SchemaMismatch(
            f"Iceberg has no type for column {field.name}, {field.type}.",
            "Cast it in the DataFrame, or leave it out.",
        ) from error
    return type_


def create(
    catalog: Catalog,
    identifier: tuple[str, ...],
    schema: pa.Schema,
    keys: Sequence[str] = (),
    partitions: Sequence[str] = (),
) -> None:
    """Make the table from a DataFrame's columns, and its namespace, unless they are there.

    :param keys: columns that take no null, and are the table's identifier.
    :param partitions: see `partition_field`.
    :raises SchemaMismatch: Iceberg has no type for a column.
    :raises OptionError: a key or partition names no column.
    """
    for name in keys:
        _known(name, schema, "keyColumns")
    made = iceberg_schema(schema, keys)
    spec = PartitionSpec(
        *(partition_field(each, made, schema, 1000 + i) for i, each in enumerate(partitions))
    )
    with contextlib.suppress(NamespaceAlreadyExistsError):
        catalog.create_namespace(identifier[:-1])
    try:
        catalog.create_table(
            identifier, made, partition_spec=spec, properties={"format-version": str(FORMAT)}
        )
    except TableAlreadyExistsError:
        return


_BY = re.compile(r"(?:(\w+)\s*\(\s*(?:(\d+)\s*,)?)?\s*([^(),]+?)\s*\)?")
_PLURALS = {"years": "year", "months": "month", "days": "day", "hours": "hour"}


def partition_field(text: str, made: Schema, schema: pa.Schema, field_id: int) -> PartitionField:
    """Return the partition that an element of `partitionColumns` asks for.

    :param text: a column, or `day(column)`, `bucket(16, column)`, in the words of Spark's DDL.
    :raises OptionError: it is none.
    """
    found = _BY.fullmatch(text.strip())
    if found is None:
        raise _no_partition(text)
    by, width, column = found.groups()
    _known(column, schema, "partitionColumns")
    word = _PLURALS.get(by or "", by or "identity")
    transform: Transform[object, object] = parse_transform(f"{word}[{width}]" if width else word)
    source = made.find_field(column)
    if isinstance(transform, UnknownTransform) or not transform.can_transform(source.field_type):
        raise _no_partition(text)
    name = column if word == "identity" else f"{column}_{word}"
    return PartitionField(
        source_id=source.field_id, field_id=field_id, transform=transform, name=name
    )


def _no_partition(text: str) -> OptionError:
    return OptionError(
        f"Option partitionColumns has {text}, by which no Iceberg table is partitioned.",
        "Write column, bucket(16, column), truncate(4, column), or year, month, day or hour of a time:"
        " day(column).",
    )


def _known(name: str, schema: pa.Schema, option: str) -> None:
    if name not in schema.names:
        raise OptionError(
            f"Option {option} has {name}, and the DataFrame has no such column.",
            f"It has {', '.join(schema.names)}.",
        )
