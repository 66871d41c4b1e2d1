"""Partitions of a Delta table: which columns and values they take, and their folders. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from wal_sink.model.plan import Plan
from wal_sink.model.spark_types import spark_ddl
from wal_sink.targets.arrow_values import string
from wal_sink.targets.casts import refuse, refuse_as_folder, refuse_years

PARTITIONS = "partitions"
"""Key of `Plan.details`: the partition columns in the table's order."""


def can_partition(type_: pa.DataType) -> bool:
    """Return True if a column of this type may partition a table.

    Partition values are texts. All readers of Delta parse the texts of such a type alike.
    """
    unfit = (pt.is_floating, pt.is_binary, pt.is_nested, pt.is_null)
    return not any(is_kind(type_) for is_kind in unfit)


Values = tuple[str | None, ...]
"""A partition's values as texts, in the order of the table's partition columns."""


def split(rows: pa.Table, names: Sequence[str]) -> Iterator[tuple[Values, pa.Table]]:
    """Yield each partition and its rows, in their order and without the partition columns."""
    if not names:
        yield (), rows
        return
    rows = rows.combine_chunks()
    # Columns are named by position, since a partition column may itself be called "row".
    keys = [str(position) for position in range(len(names))]
    texts = pa.table([_texts(rows[name]) for name in names], names=keys)
    numbered = texts.append_column("row", pa.array(range(len(rows)), pa.int64()))
    groups = numbered.group_by(keys, use_threads=False).aggregate([("row", "list")])
    rest = rows.drop_columns(list(names))
    for group in range(groups.num_rows):
        values = tuple(groups.column(key)[group].as_py() for key in keys)
        yield values, rest.take(groups.column("row_list")[group].values)


def _texts(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return values as the texts that Delta's log has for partitions."""
    texts = values.cast(pa.string())
    zoned = pt.is_timestamp(values.type) and values.type.tz is not None
    return pc.replace_substring(texts, " ", "T") if zoned else texts


def folder(names: Sequence[str], values: Values) -> str:
    """Return the folder of a partition, such as "day=2026-01-31/", from which polars reads the values."""
    parts = [
        f"{name.replace('/', '%2F').replace(':', '%3A')}={_NULL if value is None else quote(value, safe='')}/"
        for name, value in zip(names, values, strict=True)
    ]
    return "".join(parts)


_NULL = "__HIVE_DEFAULT_PARTITION__"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def is_absolute(path: str) -> bool:
    """Return True if a path in the table's log is absolute, such as "/a/b" or "s3://a/b"."""
    return path.startswith("/") or _SCHEME.match(path) is not None


def about_partitions(
    schema: pa.Schema, types: pa.Schema, partitioned_by: Sequence[str]
) -> Iterator[str]:
    """Yield a line for each reason why a DataFrame does not fit the table's partition columns.

    :param schema: the columns that are written.
    :param types: the types of the table.
    """
    for name in partitioned_by:
        if name in schema.names and not can_partition(types.field(name).type):
            yield (
                f"{name}: the table is partitioned by it, and its type is"
                f" {spark_ddl(types.field(name).type)}. Partition by a text, a whole number, a decimal, a"
                " boolean, a date or a timestamp."
            )
    if not set(schema.names) - set(partitioned_by):
        yield (
            "the DataFrame has only partition columns. Add one of the table's other columns, even if it is"
            " null."
        )


def about_moved(plan: Plan, partitioned_by: Sequence[str]) -> Iterator[str]:
    """Yield a text if the table has other partition columns than the plan."""
    if list(partitioned_by) != (planned := plan.details[PARTITIONS]):
        yield f"its partition columns were {planned}, and are {list(partitioned_by)} now"


def refuse_as_partition(values: pa.Array, name: str, *, merged: bool) -> None:
    """Refuse values that a partition of Delta cannot name, and values that delta-rs cannot merge.

    :param merged: True if delta-rs (1.6.6) merges the rows, and so reads files of the partition.
    """
    refuse_years(values, "a partition of Delta has no text for it")
    if pt.is_string(values.type):
        refuse(
            pc.equal(values, string("")),
            "is an empty text, which a partition of Delta stores as a null",
            "Write a null or another text: F.when(F.col('{name}') != '', …).",
        )
        refuse_as_folder(values, name)
    if merged and pt.is_decimal(values.type) and values.type.scale:
        refuse(
            pc.less(values, string("0").cast(values.type)),
            "is negative, and delta-rs cannot read it as a partition",
            "Partition the table by another column, or filter such rows out.",
        )
