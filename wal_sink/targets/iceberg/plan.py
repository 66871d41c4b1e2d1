"""Makes the plan when a query starts, and refuses a table that cannot be written exactly once.

If options request that, a start also creates the table or adds columns. A flusher calls `refuse_unfit` again
before it stages rows.
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

from wal_sink.errors import OptionError
from wal_sink.model.plan import Plan
from wal_sink.model.spark_types import canonical
from wal_sink.targets.arrow_columns import (
    ARROW,
    ArrowRules,
    encoded_types,
    new_columns,
    refuse_table,
    table_columns,
)
from wal_sink.targets.columns import match_columns
from wal_sink.targets.ddl import (
    Layout,
    refuse_unknown_columns,
    spark_name,
    spark_statement,
    spark_table,
)
from wal_sink.targets.iceberg.catalog import (
    catalog_of,
    find,
    loaded,
    no_table,
    refuse_catalog_in_name,
)
from wal_sink.targets.iceberg.check import FOLDERS, WIDTHS
from wal_sink.targets.iceberg.options import IcebergOptions
from wal_sink.targets.iceberg.table import FORMAT, arrow_types

logger = logging.getLogger(__name__)


def agree(options: IcebergOptions, schema: pa.Schema, key: str, *, changes: bool) -> Plan:
    """Compare a DataFrame with the table, and return the plan.

    :param changes: True to create the table and add columns, if options request that.
    :raises SchemaMismatch: the table is missing or cannot be written, or the DataFrame does not fit.
    :raises Exception: an error of pyiceberg, for `classify`.
    """
    catalog = catalog_of(options)
    table = find(catalog, options)
    if table is None:
        refuse_catalog_in_name(catalog, options)
        new = new_table(options.quoted, schema, options.layout)
        if not options.create_table:
            raise no_table(options.table, new.statement)
        _refuse(_about_shape(new.columns, new.partitions), options)
        planned = _plan(new.columns, new.partitions, options, schema, key)
        if not changes:
            return planned.that_creates(new.statement)
        create(catalog, options.identifier, new)
        logger.info("created the table: %s", new.statement)
        table = loaded(catalog, options)
    refuse_unfit(table, options)
    update = with_missing(table, schema) if options.merge_schema else None
    columns = update._apply() if update else table.schema()  # noqa: SLF001 -- the schema after `commit`
    planned = _plan(columns, table.spec(), options, schema, key)
    if update and changes:
        update.commit()  # after the checks: an unfit DataFrame changes nothing
    return planned


# --- the table ------------------------------------------------------------------------------------


def refuse_unfit(table: Table, options: IcebergOptions) -> None:
    """Refuse a table if pyiceberg cannot write files of this table.

    :raises SchemaMismatch: the table cannot be written. The error names a reason and a remedy.
    """
    _refuse(_about_properties(table, options), options)
    _refuse(_about_shape(table.schema(), table.spec(), table.sort_order()), options)


def _refuse(obstacles: Iterator[tuple[str, str]], options: IcebergOptions) -> None:
    refuse_table(f"The Iceberg table {options.table}", obstacles)


def _about_properties(table: Table, options: IcebergOptions) -> Iterator[tuple[str, str]]:
    metadata, name, copy = table.metadata, options.quoted, f"{options.table}_copy"
    if metadata.format_version != FORMAT:
        rows = f"SELECT * FROM {name}"  # noqa: S608 -- only shown
        yield (
            f"it has format version {metadata.format_version}, and pyiceberg writes version {FORMAT}",
            f"ALTER TABLE {name} SET TBLPROPERTIES ('format-version'='{FORMAT}');"
            if metadata.format_version < FORMAT
            else f"A version cannot be lowered. Write to a copy: CREATE TABLE {spark_table(copy.split('.'))}"
            f" USING iceberg TBLPROPERTIES ('format-version'='{FORMAT}') AS {rows}; and set option table to"
            f" {copy}.",
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
            f"pyiceberg cannot write files with the table's properties: {error}",
            "Change the property write.parquet.… or write.metadata.metrics.… that the error names.",
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
                "Use another transform, such as bucket, or another column.",
            )
        elif how == "partitioned" and isinstance(type_, FloatType | DoubleType):
            # pyiceberg selects the rows of a partition by `=`, and NaN equals nothing.
            yield (
                f"it is partitioned by {source}, a {type_}, and rows with NaN would be lost",
                "Partition it by another column, or by a decimal.",
            )
    sources = [field.source_id for field in partitions.fields]
    if twice := {source for source in sources if sources.count(source) > 1}:
        names = ", ".join(columns.find_column_name(source) or "" for source in sorted(twice))
        yield (
            f"it is partitioned twice by {names}, which pyiceberg does not write",
            "Drop one of the two: ALTER TABLE … DROP PARTITION FIELD ….",
        )


def _computes(transform: Transform[Any, Any], type_: IcebergType) -> bool:
    """Try a transform on no values. Return False if pyiceberg does not compute it for the type."""
    try:
        values = transform.pyarrow_transform(type_)(pa.nulls(0, schema_to_pyarrow(type_)))
        rows = pa.table([values], names=["by"])
        rows.group_by("by").aggregate([])  # as pyiceberg finds the partitions of rows
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
    """Return the plan for a table with these columns and partitions.

    :raises SchemaMismatch: the DataFrame does not fit.
    """
    types = arrow_types(columns_of_table)
    frame = pa.schema([field.with_type(canonical(field.type)) for field in schema])
    name = options.table
    option = "" if options.merge_schema else "iceberg.mergeSchema"
    rules = ArrowRules(types, options.quoted, option)
    columns = match_columns(frame, table_columns(types), name, rules)
    folders: dict[str, str] = {}
    widths: dict[str, int] = {}
    for partition in spec.fields:
        column = columns_of_table.find_column_name(partition.source_id) or ""
        type_, transform = columns_of_table.find_type(partition.source_id), partition.transform
        if column in schema.names and isinstance(type_, StringType | BinaryType):
            if isinstance(transform, IdentityTransform | TruncateTransform):
                folders[column] = partition.name
            if isinstance(transform, TruncateTransform):
                widths[column] = transform.width
    planned = pa.schema([types.field(column) for column in schema.names])
    return Plan(
        key=key,
        target="iceberg",
        table=name,
        columns=columns,
        details={ARROW: encoded_types(planned), FOLDERS: folders, WIDTHS: widths},
    )


def with_missing(table: Table, schema: pa.Schema) -> UpdateSchema | None:
    """Return the uncommitted change that adds the missing columns to the table. The new columns take nulls.

    :returns: None if the table has all columns.
    :raises SchemaMismatch: Iceberg has no type for a column.
    """
    # A name that differs by case only is not new: Spark could read neither of two such columns.
    names = {field.name.lower() for field in table.schema().fields}
    new = pa.schema([field for field in schema if field.name.lower() not in names])
    return table.update_schema().union_by_name(iceberg_schema(new)) if len(new) else None


def iceberg_schema(schema: pa.Schema, required: Sequence[str] = ()) -> Schema:
    """Convert the columns of a DataFrame to an Iceberg schema.

    :param required: the columns of the key, which become identifier fields.
    :raises SchemaMismatch: Iceberg has no type for a column.
    :raises OptionError: a column cannot be part of a key.
    """
    columns = new_columns(schema, required, _pyarrow_to_schema_without_ids, "Iceberg")
    fresh = assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(columns))
    key = [fresh.find_field(name).field_id for name in required]
    try:
        return Schema(*fresh.fields, identifier_field_ids=key)
    except ValueError as error:
        raise OptionError(
            f"Option keyColumns is {', '.join(required)}, and no float or nested value is a key of Iceberg.",
            "Name other columns, or cast the column, such as to a string.",
        ) from error


class NewTable(NamedTuple):
    """The table that option createTable creates."""

    columns: Schema
    partitions: PartitionSpec
    statement: str
    """Spark's statement that creates the table."""


def new_table(name: str, schema: pa.Schema, layout: Layout) -> NewTable:
    """Return the table that createTable creates for a DataFrame.

    :param name: the table, quoted for Spark's SQL.
    :raises SchemaMismatch: Iceberg has no type for a column, or an option names a missing column.
    :raises OptionError: `partitionColumns` has an element by which no Iceberg table can be partitioned.
    """
    refuse_unknown_columns(Layout(key=layout.key), schema)
    columns = iceberg_schema(schema, layout.key)
    partitions = [
        _partition(text, columns, schema, field_id)
        for field_id, text in enumerate(layout.partition, _FIRST_PARTITION)
    ]
    elements = [element for _, element in partitions]
    statement = spark_statement(name, schema, layout.key, elements, "iceberg")
    if layout.key:
        keys = ", ".join(map(spark_name, layout.key))
        statement += f";\nALTER TABLE {name} SET IDENTIFIER FIELDS {keys}"
    return NewTable(columns, PartitionSpec(*(field for field, _ in partitions)), statement)


def create(catalog: Catalog, identifier: tuple[str, ...], new: NewTable) -> None:
    """Create the namespace and the table, unless they exist."""
    with contextlib.suppress(NamespaceAlreadyExistsError):
        catalog.create_namespace(identifier[:-1])
    with contextlib.suppress(TableAlreadyExistsError):
        catalog.create_table(
            identifier,
            new.columns,
            partition_spec=new.partitions,
            properties={"format-version": str(FORMAT)},
        )


_FIRST_PARTITION = 1000
"""The id of a table's first partition field. Iceberg's specification sets it."""
_BY = re.compile(r"(\w+)\s*\(\s*(?:(\d+)\s*,)?\s*([^(),]+?)\s*\)|([^(),]+)")
_PLURALS = {"years": "year", "months": "month", "days": "day", "hours": "hour"}


def _partition(
    text: str, columns: Schema, schema: pa.Schema, field_id: int
) -> tuple[PartitionField, str]:
    """Return the partition field for an element of `partitionColumns`, and the element in Spark's SQL.

    :param text: the element, such as "id", "day(at)" or "bucket(16, id)".
    :param columns: the columns of the new table.
    :raises OptionError: no Iceberg table can be partitioned by the element.
    :raises SchemaMismatch: the DataFrame has no such column.
    """
    try:
        if (match := _BY.fullmatch(text.strip())) is None:
            raise ValueError(text)
        by, width, inner, alone = match.groups("")
        column = inner or alone
        refuse_unknown_columns(Layout(partition=(column,)), schema)
        word = _PLURALS.get(by, by or "identity")
        source = columns.find_field(column)
        transform: Transform[Any, Any] = parse_transform(f"{word}[{width}]" if width else word)
        if isinstance(transform, UnknownTransform) or not transform.can_transform(
            source.field_type
        ):
            raise ValueError(text)
    except (ValueError, ValidationError) as error:
        raise OptionError(
            f"Option partitionColumns has {text}, by which no Iceberg table is partitioned.",
            "Write column, bucket(16, column), truncate(4, column), or year, month, day or hour of a time:"
            " day(column).",
        ) from error
    name, quoted = column if word == "identity" else f"{column}_{word}", spark_name(column)
    while word != "identity" and name in columns.column_names:
        name += "_"  # only a partition by the value itself may have the name of a column
    field = PartitionField(
        source_id=source.field_id, field_id=field_id, transform=transform, name=name
    )
    return field, f"{by}({width}{width and ', '}{quoted})" if by else quoted
