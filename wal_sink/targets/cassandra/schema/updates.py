"""Which DataFrames can be written by UPDATE: values of rows, or the static columns of partitions. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Column
from wal_sink.targets.cassandra.schema.table_metadata import TableMetadata
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
