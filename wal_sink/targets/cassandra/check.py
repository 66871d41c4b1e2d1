"""Casts columns of a DataFrame to the types of the log, and refuses values that Cassandra would refuse.

The functions run in tasks. Tasks do not connect, so they cannot find rows that only the server refuses, for
example because of an index. `sender` finds these rows in a flush.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.errors import InvalidRow
from wal_sink.model.plan import Plan
from wal_sink.targets.arrow_values import TRUE, as_python, int64, shorten
from wal_sink.targets.cassandra.arrow_buffers import lists_with, sizes, unnest
from wal_sink.targets.cassandra.row_plan import KEY, CassandraPlan
from wal_sink.targets.cassandra.types import (
    NO_NULLS,
    TYPES,
    Constraint,
    CqlType,
    cast_column,
    column_types,
)
from wal_sink.targets.cdc import except_deletes

MAX_KEY_BYTES = 65_535
"""The server's limit for a partition key, and for all clustering columns of a row together."""
MAX_ROW_BYTES = 8 * 1024 * 1024
"""The sink's limit for a row: half of the largest write that a server accepts by default."""


def cast_rows(
    batch: pa.RecordBatch, plan: CassandraPlan, deletes: pa.Array | None
) -> pa.RecordBatch:
    """Refuse invalid values, and cast the columns of the table to the types of the log.

    :param deletes: flags of the rows that are deletes; None if all rows are upserts.
    :raises InvalidRow: a row is invalid. The error names the column and the first such row.
    """
    stored = []
    for column, tree, values in zip(plan.columns, column_types(plan), batch.columns, strict=True):
        name, key = column.name, column.role in KEY
        if key and values.null_count:
            missing = values.is_null()
            if column.role == "clustering":  # a delete of several rows has nulls here
                missing = except_deletes(missing, deletes)
            problem = "is part of the primary key and null"
            remedy = f'Drop such rows, .na.drop(subset=["{name}"]), or fill them in.'
            refuse_invalid(batch, plan, InvalidValue.first(missing, name, None, problem, remedy))
        refuse_invalid(batch, plan, next(invalid_values(name, values, tree, key=key), None))
        stored.append(cast_column(values, tree))
    names = [column.name for column in plan.columns]
    rows = pa.RecordBatch.from_arrays(stored, names=names)
    _refuse_sizes(batch, plan, rows)
    return rows


def _refuse_sizes(batch: pa.RecordBatch, plan: CassandraPlan, stored: pa.RecordBatch) -> None:
    """Refuse keys and rows that are too long, and an empty partition key.

    :param batch: rows of the DataFrame, whose values errors show.
    :param stored: the same rows after the cast.
    """
    bytes_of = {
        column.name: sizes(values)
        for column, values in zip(plan.columns, stored.columns, strict=True)
    }
    partition = [column.name for column in plan.columns if column.role == "partition"]
    clustering = [column.name for column in plan.columns if column.role == "clustering"]

    def refuse(bad: pa.Array, path: str, problem: str, remedy: str) -> None:
        # If the key has several columns, path has several names, and the error shows no value.
        values = batch.column(path) if path in batch.schema.names else None
        refuse_invalid(batch, plan, InvalidValue.first(bad, path, values, problem, remedy))

    if len(partition) == 1:
        refuse(
            pc.equal(bytes_of[partition[0]], int64(0)),
            partition[0],
            "is empty, and it is the whole partition key",
            "Drop such rows, or fill them in.",
        )
    # If the partition key has several columns, the server stores three more bytes with each column, for its
    # length and a separator.
    overhead = 3 * len(partition) if len(partition) > 1 else 0
    for names, extra, noun in (
        (partition, overhead, "partition key"),
        (clustering, 0, "clustering key"),
    ):
        if names:
            total = functools.reduce(pc.add, [bytes_of[name] for name in names])
            refuse(
                pc.greater(total, int64(MAX_KEY_BYTES - extra)),
                ", ".join(names),
                f"is longer than the {MAX_KEY_BYTES:,} bytes that a {noun} may have",
                "Use a digest of the value as the key: sha2(col, 256).",
            )
    refuse(
        pc.greater(functools.reduce(pc.add, bytes_of.values()), int64(MAX_ROW_BYTES)),
        max(bytes_of, key=lambda name: pc.max(bytes_of[name]).as_py() or 0),
        f"makes a row of more than {MAX_ROW_BYTES:,} bytes, and a server accepts hardly more in one write",
        "Split the value, or keep it elsewhere and write a reference.",
    )


class InvalidValue(NamedTuple):
    """The first value of a column that breaks a constraint."""

    row: int
    path: str
    """The column or its part, such as `address.zip`."""
    value: pa.Scalar | None
    """The invalid value; None if the error shows no value."""
    problem: str
    remedy: str
    rows: pa.Array
    """Flags of all rows that break the constraint. A null counts as False."""

    @classmethod
    def first(
        cls, bad: pa.Array, path: str, values: pa.Array | None, problem: str, remedy: str
    ) -> InvalidValue | None:
        """Return the first value whose flag in `bad` is True; None if there is no such value."""
        row = pc.index(bad, TRUE).as_py()
        if row < 0:
            return None
        return cls(row, path, None if values is None else values[row], problem, remedy, bad)


def refuse_invalid(batch: pa.RecordBatch, plan: Plan, invalid: InvalidValue | None) -> None:
    """Raise the error of an invalid value. Do nothing if `invalid` is None.

    :raises InvalidRow: the error names the row by its key.
    """
    if invalid:
        value = "" if invalid.value is None else f" ({shorten(as_python(invalid.value))})"
        raise InvalidRow(
            f"Column {invalid.path} of {plan.table}{value} {invalid.problem}, in"
            f" {row_text(batch, plan, invalid.row)}.",
            invalid.remedy,
            column=invalid.path,
            problem=f"Column {invalid.path} of {plan.table} {invalid.problem}.",
            rows=invalid.rows,
        )


def row_text(batch: pa.RecordBatch, plan: Plan, row: int) -> str:
    """Return the key of a row of the DataFrame, as errors show it."""
    return key_text(plan, [as_python(values[row]) for values in batch.columns])


def key_text(plan: Plan, values: Sequence[Any]) -> str:
    """Return the key of a row as errors show it, such as "the row with id=7".

    :param values: the row's values of the plan's columns, in order.
    """
    key = ", ".join(
        f"{column.name}={shorten(value)}"
        for column, value in zip(plan.columns, values, strict=True)
        if column.role in KEY
    )
    return f"the row with {key}"


def invalid_values(
    path: str, column: pa.Array, tree: CqlType, *, key: bool
) -> Iterator[InvalidValue]:
    """Yield the first invalid value of a column, and of each part of the column.

    :param key: True for a column of the primary key.
    """
    if tree.kind in TYPES:
        scalar = TYPES[tree.kind]
        yield from _broken(path, column, scalar.constraint)
        if key:
            yield from _broken(path, column, scalar.key_constraint)
    elif tree.kind in ("tuple", "udt"):
        for i, field in enumerate(column.flatten()):
            name = column.type.field(i).name
            part = tree.parts[tree.fields.index(name) if tree.kind == "udt" else i]
            yield from invalid_values(f"{path}.{name}", field, part, key=key)
    else:
        offsets, values = unnest(column)
        if tree.kind == "vector":
            yield from _wrong_lengths(path, column, offsets, tree.length)
        for invalid in _of_elements(path, values, tree, key):
            # An element belongs to the last list that begins at or before the element. Earlier lists that
            # begin at the same position are empty.
            begins = pc.less_equal(offsets[:-1], int64(invalid.row))
            yield invalid._replace(
                row=pc.sum(begins).as_py() - 1, rows=lists_with(offsets, invalid.rows)
            )


def _of_elements(path: str, values: pa.Array, tree: CqlType, key: bool) -> Iterator[InvalidValue]:
    columns, names = [values], ["element"]
    if tree.kind == "map":
        columns, names = values.flatten(), ["key", "value"]
    for name, elements, part in zip(names, columns, tree.parts, strict=True):
        inner = f"{path}.{name}"
        yield from _broken(inner, elements, NO_NULLS)
        # A cast must not make two keys of a map, or two elements of a set, equal.
        is_key = key or name == "key" or tree.kind == "set"
        yield from invalid_values(inner, elements, part, key=is_key)


def _broken(path: str, column: pa.Array, rule: Constraint | None) -> Iterator[InvalidValue]:
    if rule is not None:
        bad = rule.bad(column)
        if invalid := InvalidValue.first(bad, path, column, rule.problem, rule.remedy):
            yield invalid


def _wrong_lengths(
    path: str, column: pa.Array, offsets: pa.Array, length: int
) -> Iterator[InvalidValue]:
    lengths = pc.subtract(offsets[1:], offsets[:-1])
    bad = pc.and_(column.is_valid(), pc.not_equal(lengths, int64(length)))
    remedy = "Drop such rows, or pad or cut the arrays: slice(c, 1, n)."
    if invalid := InvalidValue.first(bad, path, column, "", remedy):
        count = lengths[invalid.row].as_py()
        problem = f"has {count} elements, and the table's vector takes exactly {length}"
        yield invalid._replace(problem=problem)
