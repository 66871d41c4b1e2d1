"""Which DataFrames can be written by UPDATE: values, static columns, elements of collections. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Column
from wal_sink.targets.cassandra.names import COLUMNS_OPTION, did_you_mean
from wal_sink.targets.cassandra.schema.alike import alike
from wal_sink.targets.cassandra.schema.table_metadata import ColumnMetadata, TableMetadata
from wal_sink.targets.cassandra.types.absent import OPTION as IF_NOT_EXISTS
from wal_sink.targets.cassandra.types.collection_mode import Change, changes_of, option_of
from wal_sink.targets.cassandra.types.cql_type import CqlType
from wal_sink.targets.cassandra.types.write_mode import OPTION


def writes_static_alone(live: TableMetadata, written: Collection[str]) -> bool:
    """Whether only static columns are written beside the partition key.

    :param written: the table's names of the columns that are.
    """
    roles = {column.role for column in live.columns if column.name in written}
    return "static" in roles and not roles & {"regular", "clustering"}


def refuse_no_update(live: TableMetadata, columns: Sequence[Column], operation: str) -> None:
    """Refuse what no UPDATE can write.

    :param columns: those of the table that the DataFrame has.
    :param operation: the value of `operationColumn`.
    :raises SchemaMismatch: there is no value to set; or clustering columns are beside static ones alone; or
        rows are partitions, and some are deletes.
    """
    roles = {column.role for column in columns}
    if not roles & {"static", "regular"}:
        raise SchemaMismatch(
            f"The DataFrame has only the key of {live.name}, and {OPTION} is update: no value is set.",
            f"Add a column, or leave out {OPTION}: an insert writes rows of keys alone.",
        )
    if "regular" not in roles and "clustering" in roles:
        raise SchemaMismatch(
            f"Of {live.name} the DataFrame has static columns and clustering columns: an UPDATE of static"
            " columns alone is of a partition, and Cassandra refuses it with clustering columns.",
            "Drop the clustering columns, to write partitions; or add a column that is not static.",
        )
    if "regular" not in roles and operation and any(c.role == "clustering" for c in live.key):
        raise SchemaMismatch(
            f"Of {live.name} the DataFrame has static columns alone, and operationColumn is {operation}: a"
            " delete would take the whole partition, with all its rows.",
            "Leave out operationColumn, and clear values by nulls, with cassandra.nulls=write; or add the"
            " clustering columns and a column that is not static.",
        )


def refuse_no_condition(live: TableMetadata, columns: Sequence[Column]) -> None:
    """Refuse a table of which the first row of a key cannot be told, where that one stays.

    Rows of a partition are written one after the other, so only partition keys have to be told apart.

    :param columns: those of the table that the DataFrame has.
    :raises SchemaMismatch: there are static columns; or two encodings of a partition key are one row.
    """
    for column in columns:
        if column.role == "partition" and (why := alike(column, live)):
            raise SchemaMismatch(
                f"{column.name} of {live.name}: {why}, which are written beside each other, so that"
                f" {IF_NOT_EXISTS} could not say which one is first.",
                "Write a table whose partition key has another type, such as a frozen list.",
            )
    if static := [column.name for column in columns if column.role == "static"]:
        raise SchemaMismatch(
            f"Of {live.name} the DataFrame has the static columns {', '.join(static)}, and {IF_NOT_EXISTS} is"
            " true: each new row of a partition would write them, in no order.",
            "Write them by a query of their own, and drop them from this one.",
        )


def found_changes(modes: Mapping[str, Change], columns: Sequence[str]) -> dict[str, Change]:
    """Return what is done to the columns of a DataFrame, by their names there.

    :param modes: by column in lower case, as options name them.
    :raises SchemaMismatch: an option names no column, or two that differ in upper and lower case only.
    """
    found = changes_of(modes, columns)
    for column in modes:
        named = [name for name in columns if name.lower() == column]
        option = option_of(column)
        if not named:
            near = did_you_mean(column, columns)
            raise SchemaMismatch(
                f"Option {option} names no column of the DataFrame that is written; it has"
                f" {', '.join(columns)}. {near}".rstrip(),
                "Correct its last part, which is the DataFrame's name of the column, or leave it out.",
            )
        if len(set(named)) > 1:
            raise SchemaMismatch(
                f"Option {option} could mean {' or '.join(named)}: Spark passes the names of options in"
                " lower case.",
                f"Rename one of the two in the DataFrame; {COLUMNS_OPTION} then says which column of the"
                " table it is written to.",
            )
    return found


def about_change(field: pa.Field, column: ColumnMetadata, tree: CqlType, change: Change) -> str:
    """Say why a column's elements cannot be added or taken out one by one; empty: they can.

    :param field: the DataFrame's column.
    :param column: the table's.
    :param tree: its type.
    """
    begins = f"{field.name}: {option_of(field.name)} is {change}, and"
    leave = "Leave out the option"
    if column.role in ("partition", "clustering"):
        return f"{begins} {column.name} is in the table's primary key. {leave}."
    if tree.kind == "list":
        return (
            f"{begins} the table's {tree.label} is a list: to append to it twice doubles its elements, and a"
            f" write can be repeated. {leave}, or make the table's column a set or a map."
        )
    if tree.kind not in ("set", "map"):
        return f"{begins} the table's {tree.label} is no set and no map. {leave}."
    if tree.frozen:
        return (
            f"{begins} the table's {tree.label} is frozen: it can only be written whole. {leave}, or give"
            " the table a column that is not frozen."
        )
    if change == "remove" and tree.kind == "map" and pa.types.is_map(field.type):
        return (
            f"{begins} entries are taken out by their keys. Give an array of them,"
            f' .withColumn("{field.name}", map_keys("{field.name}")).'
        )
    return ""
