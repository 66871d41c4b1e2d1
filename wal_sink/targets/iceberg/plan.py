"""Compares DataFrame and table: when a query starts, which makes the plan, and before rows are staged.

A start also makes the table, or adds columns to it, where options ask for that.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    TableAlreadyExistsError,
    ValidationError,
)
from pyiceberg.io.pyarrow import (
    _get_parquet_writer_kwargs,
    _pyarrow_to_schema_without_ids,
    compute_statistics_plan,
    schema_to_pyarrow,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.transforms import (
    IdentityTransform,
    Transform,
    TruncateTransform,
    UnknownTransform,
    parse_transform,
)
from pyiceberg.types import BinaryType, DoubleType, FloatType, IcebergType, StringType

from wal_sink.errors import OptionError, SchemaMismatch
from wal_sink.model.plan import Plan, canonical
from wal_sink.targets.arrow_tables import ARROW, ArrowRules, new_columns, noted, table_columns
from wal_sink.targets.columns import match_columns
from wal_sink.targets.iceberg.check import FOLDERS, WIDTHS
from wal_sink.targets.iceberg.options import IcebergOptions
from wal_sink.targets.iceberg.table import (
    FORMAT,
    arrow_types,
    catalog_of,
    find,
    loaded,
    no_table,
    refuse_catalog_in_name,
)
from wal_sink.targets.sql_text import spark_statement
from wal_sink.targets.table_options import Layout, refuse_unknown_columns

logger = logging.getLogger(__name__)


def agree(options: IcebergOptions, schema: pa.Schema, key: str, *, changes: bool) -> Plan:
    """Compare a DataFrame with the table.

    :param changes: whether columns may be added, and the table made, as the options ask for.
    :raises SchemaMismatch: there is no table, it cannot be written, or the DataFrame does not fit.
    :raises Exception: of pyiceberg, for `classify`.
    """
    catalog = catalog_of(options)
    table = find(catalog, options)
    if table is None:
        refuse_catalog_in_name(catalog, options)
        new = new_table(options.table, schema, options.layout)
        if not options.create_table:
            raise no_table(options.table, new.statement)
        _refuse(_about_shape(new.columns, new.partitions), options.table)
        planned = _plan(new.columns, new.partitions, options, schema, key)
        if not changes:
            return planned.that_creates(new.statement)
        create(catalog, options.identifier, new)
        logger.info("made the table: %s", new.statement)
        table = loaded(catalog, options)
    refuse_unfit(table, options.table)
    update = with_missing(table, schema) if options.merge_schema else None
    columns = update._apply() if update else table.schema()  # noqa: SLF001 -- what `commit` would make
    planned = _plan(columns, table.spec(), options, schema, key)
    if update and changes:
        update.commit()  # only now: a DataFrame that does not fit changes nothing
    return planned


# --- the table ------------------------------------------------------------------------------------


def refuse_unfit(table: Table, name: str) -> None:
    """Check that files of the table can be written, and a ledger kept in it.

    :raises SchemaMismatch: names what is in the way.
    """
    _refuse(_about_properties(table, name), name)
    _refuse(_about_shape(table.schema(), table.spec(), table.sort_order()), name)


def _refuse(obstacles: Iterator[tuple[str, str]], name: str) -> None:
    for what, remedy in obstacles:
        raise SchemaMismatch(f"The Iceberg table {name} cannot be written: {what}.", remedy)


def _about_properties(table: Table, name: str) -> Iterator[tuple[str, str]]:
    metadata = table.metadata
    if metadata.format_version != FORMAT:
        rows = f"SELECT * FROM {name}"  # noqa: S608 -- is shown
        yield (
            f"it has format version {metadata.format_version}, and pyiceberg writes version {FORMAT}",
            f"ALTER TABLE {name} SET TBLPROPERTIES ('format-version'='{FORMAT}');"
            if metadata.format_version < FORMAT
            else f"No version is lowered. Write to a copy: CREATE TABLE {name}_copy USING iceberg"
            f" TBLPROPERTIES ('format-version'='{FORMAT}') AS {rows}; and set option table to {name}_copy.",
        )
    format_ = metadata.properties.get(TableProperties.WRITE_FILE_FORMAT, "parquet")
    if format_.lower() != "parquet":
        yield (
            f"its files are {format_}, by write.format.default",
            f"ALTER TABLE {name} SET TBLPROPERTIES ('write.format.default'='parquet');",
        )
    try:
        kwargs = _get_parquet_writer_kwargs(metadata.properties)
        pq.write_table(pa.table({"v": [1]}), pa.BufferOutputStream(), **kwargs)
        compute_statistics_plan(table.schema(), metadata.properties)
    except (NotImplementedError, OSError, ValueError) as error:
        yield (
            f"pyiceberg cannot write files by its properties: {error}",
            "Change the property write.parquet.… or write.metadata.metrics.… that the error is about.",
        )


def _about_shape(
    columns: Schema, partitions: PartitionSpec, order: SortOrder = UNSORTED_SORT_ORDER
) -> Iterator[tuple[str, str]]:
    orders = [(field, "sorted") for field in order.fields]
    for field, how in [*((field, "partitioned") for field in partitions.fields), *orders]:
        source = columns.find_column_name(field.source_id)
        type_ = columns.find_type(field.source_id)
        if not _computes(field.transform, type_):
            yield (
                f"it is {how} by {field.transform} of {source}, {type_}, which pyiceberg does not compute",
                "Change that to another transform, such as bucket, or to another column.",
            )
        elif how == "partitioned" and isinstance(type_, FloatType | DoubleType):
            # pyiceberg looks for the rows of a partition by `=`, and no NaN equals one.
            yield (
                f"it is partitioned by {source}, a {type_}",
                "Partition it by another column, or by a decimal.",
            )
    sources = [field.source_id for field in partitions.fields]
    if twice := {source for source in sources if sources.count(source) > 1}:
        names = ", ".join(columns.find_column_name(source) or "" for source in sorted(twice))
        yield (
            f"it is partitioned twice by {names}, which pyiceberg does not write",
            "Leave one of the two: ALTER TABLE … DROP PARTITION FIELD ….",
        )


def _computes(transform: Transform[Any, Any], type_: IcebergType) -> bool:
    """Return True if pyiceberg computes a transform of a type; it says so when it is to."""
    try:
        values = transform.pyarrow_transform(type_)(pa.nulls(0, schema_to_pyarrow(type_)))
        rows = pa.table([values], names=["by"])
        rows.group_by("by").aggregate([])  # so partitions are found
        pc.sort_indices(rows, sort_keys=[("by", "ascending")])
    except (NotImplementedError, TypeError, ValueError):
        return False
    return True


def _plan(
    columns_of_table: Schema,
    spec: PartitionSpec,
    options: IcebergOptions,
    schema: pa.Schema,
    key: str,
) -> Plan:
    """Compare a DataFrame with the table.

    :param columns_of_table: the table's columns.
    :param spec: its partitions.
    :raises SchemaMismatch: the DataFrame does not fit.
    """
    types = arrow_types(columns_of_table)
    frame = pa.schema([field.with_type(canonical(field.type)) for field in schema])
    name = options.table
    rules = ArrowRules(types, name, "" if options.merge_schema else "iceberg.mergeSchema")
    columns = match_columns(frame, table_columns(types), name, rules)
    folders: dict[str, str] = {}
    widths: dict[str, int] = {}
    for partition in spec.fields:
        column = columns_of_table.find_column_name(partition.source_id) or ""
        is_text = isinstance(
            columns_of_table.find_type(partition.source_id), StringType | BinaryType
        )
        truncates = isinstance(partition.transform, TruncateTransform)
        if column in schema.names and is_text:
            if truncates or isinstance(partition.transform, IdentityTransform):
                folders[column] = partition.name
            if truncates:
                widths[column] = partition.transform.width
    planned = pa.schema([types.field(column) for column in schema.names])
    return Plan(
        key=key,
        target="iceberg",
        table=name,
        columns=columns,
        details={ARROW: noted(planned), FOLDERS: folders, WIDTHS: widths},
    )


def with_missing(table: Table, schema: pa.Schema) -> UpdateSchema | None:
    """Return the change that adds a DataFrame's new columns to the table, which take nulls; not yet made.

    :returns: None: the table has all columns.
    :raises SchemaMismatch: Iceberg has no type for one.
    """
    names = {
        field.name.lower() for field in table.schema().fields
    }  # Spark would resolve neither of two
    new = pa.schema([field for field in schema if field.name.lower() not in names])
    return table.update_schema().union_by_name(iceberg_schema(new)) if len(new) else None


def iceberg_schema(schema: pa.Schema, required: Sequence[str] = ()) -> Schema:
    """Return a DataFrame's columns as a table's; those of a key are its identifier.

    :raises SchemaMismatch: Iceberg has no type for one.
    :raises OptionError: one can be no part of a key.
    """
    columns = new_columns(schema, required, _pyarrow_to_schema_without_ids, "Iceberg")
    made = assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(columns))
    key = [made.find_field(name).field_id for name in required]
    try:
        return Schema(*made.fields, identifier_field_ids=key)
    except ValueError as error:
        raise OptionError(
            f"Option keyColumns is {', '.join(required)}, and no float or nested value is a key of Iceberg.",
            "Name other columns; or cast it, such as to a string.",
        ) from error


class NewTable(NamedTuple):
    """A table to be made."""

    columns: Schema
    partitions: PartitionSpec
    statement: str
    """Spark's statement that makes it."""


def new_table(name: str, schema: pa.Schema, layout: Layout) -> NewTable:
    """Return the table that takes a DataFrame; the columns of a key are its identifier.

    :raises SchemaMismatch: Iceberg has no type for a column, or an option names one that is not there.
    :raises OptionError: an element of `partitionColumns` is not a partition.
    """
    refuse_unknown_columns(Layout(key=layout.key), schema)
    columns = iceberg_schema(schema, layout.key)
    fields = [
        partition_field(text, columns, schema, _FIRST_PARTITION + i)
        for i, text in enumerate(layout.partition)
    ]
    statement = spark_statement(name, schema, layout, "iceberg")
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
    match = _BY.fullmatch(text.strip())
    if match is None:
        raise _no_partition(text)
    by, width, column = match.groups()
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
    while word != "identity" and name in made.column_names:  # a column's name is for identity alone
        name += "_"
    return PartitionField(
        source_id=source.field_id, field_id=field_id, transform=transform, name=name
    )


def _no_partition(text: str) -> OptionError:
    return OptionError(
        f"Option partitionColumns has {text}, by which no Iceberg table is partitioned.",
        "Write column, bucket(16, column), truncate(4, column), or year, month, day or hour of a time:"
        " day(column).",
    )
