"""Tables that are made on request, and columns that are added to one."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    TableAlreadyExistsError,
    ValidationError,
)
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException, _pyarrow_to_schema_without_ids
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.transforms import Transform, UnknownTransform, parse_transform

from wal_sink.errors import OptionError, SchemaMismatch
from wal_sink.model.plan import canonical, spark_ddl
from wal_sink.targets.create_table import Layout, refuse_unknown_columns
from wal_sink.targets.iceberg.table import FORMAT


def with_missing(table: Table, schema: pa.Schema) -> UpdateSchema | None:
    """Return the change that adds a DataFrame's new columns to the table, which take nulls; not yet made.

    :returns: None: the table has all columns.
    :raises SchemaMismatch: Iceberg has no type for one.
    """
    there = {
        each.name.lower() for each in table.schema().fields
    }  # Spark would resolve neither of two
    new = pa.schema([field for field in schema if field.name.lower() not in there])
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


class NewTable(NamedTuple):
    """A table to be made."""

    columns: Schema
    partitions: PartitionSpec
    statement: str
    """That makes it, in Spark."""


def new_table(name: str, schema: pa.Schema, layout: Layout) -> NewTable:
    """Return the table that takes a DataFrame; the columns of a key are its identifier.

    :raises SchemaMismatch: Iceberg has no type for a column, or an option names one that is not there.
    :raises OptionError: an element of `partitionColumns` is no partition.
    """
    refuse_unknown_columns(Layout(key=layout.key), schema)
    columns = iceberg_schema(schema, layout.key)
    fields = [
        partition_field(text, columns, schema, _FIRST_PARTITION + i)
        for i, text in enumerate(layout.partition)
    ]
    lines = [
        f"  `{field.name}` {spark_ddl(field.type)}{' NOT NULL' if field.name in layout.key else ''}"
        for field in schema
    ]
    by = f"\nPARTITIONED BY ({', '.join(layout.partition)})" if fields else ""
    body = ",\n".join(lines)
    statement = f"CREATE TABLE {name} (\n{body}\n)\nUSING iceberg{by}"
    if layout.key:
        statement += f";\nALTER TABLE {name} SET IDENTIFIER FIELDS {', '.join(layout.key)}"
    return NewTable(columns, PartitionSpec(*fields), statement)


def create(catalog: Catalog, identifier: tuple[str, ...], made: NewTable) -> None:
    """Make the table, and its namespace, unless they are there."""
    with contextlib.suppress(NamespaceAlreadyExistsError):
        catalog.create_namespace(identifier[:-1])
    with contextlib.suppress(TableAlreadyExistsError):
        catalog.create_table(
            identifier,
            made.columns,
            partition_spec=made.partitions,
            properties={"format-version": str(FORMAT)},
        )


_FIRST_PARTITION = 1000
"""Iceberg counts the fields of partitions from here."""
_BY = re.compile(r"(?:(\w+)\s*\(\s*(?:(\d+)\s*,)?)?\s*([^(),]+?)\s*\)?")
_PLURALS = {"years": "year", "months": "month", "days": "day", "hours": "hour"}


def partition_field(text: str, made: Schema, schema: pa.Schema, field_id: int) -> PartitionField:
    """Return the partition that an element of `partitionColumns` asks for.

    :param text: a column, or `day(column)`, `bucket(16, column)`, in the words of Spark's DDL.
    :raises OptionError: it is none.
    :raises SchemaMismatch: the DataFrame has no such column.
    """
    found = _BY.fullmatch(text.strip())
    if found is None:
        raise _no_partition(text)
    by, width, column = found.groups()
    refuse_unknown_columns(Layout(partition=(column,)), schema)
    word = _PLURALS.get(by or "", by or "identity")
    source = made.find_field(column)
    try:
        transform: Transform[Any, Any] = parse_transform(f"{word}[{width}]" if width else word)
    except (ValueError, ValidationError) as error:
        raise _no_partition(text) from error
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
