"""Rows of a change stream (CDC): deletes, and cells whose value is unavailable. No I/O.

The operation column says which rows are deletes.

A change stream such as Debezium's sends a placeholder text in place of a large value that an update has not
changed. Option unavailableValue names this text. An upsert leaves such a cell unchanged. The log stores the
cell as a null, with a flag in a column of its own. A row with such a cell updates a row of the table, and
never adds a new row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from wal_sink.errors import InvalidRow
from wal_sink.model.plan import Plan
from wal_sink.model.spark_types import is_text
from wal_sink.targets.arrow_values import FALSE, TRUE, as_python, blob, null, shorten, string
from wal_sink.targets.operation_options import DELETE, OPERATIONS, UNAVAILABLE_VALUE

# --- deletes --------------------------------------------------------------------------------------

_DELETE = string(DELETE)


def operations_of_rows(
    batch: pa.RecordBatch, plan: Plan, row_text: Callable[[int], str]
) -> pa.Array | None:
    """Return `upsert` or `delete` for each row. None if the plan has no operation column.

    :param row_text: returns the text by which errors name the row at a position.
    :raises InvalidRow: a value of the operation column is null, or is none of the plan's words for upserts
        and deletes.
    """
    if plan.operation is None:
        return None
    values = batch.column(plan.operation)
    words, operations = values.cast(pa.string()), pa.nulls(len(values), pa.string())
    for word, meaning in plan.operations.items():
        is_word = pc.fill_null(pc.equal(words, string(word)), FALSE)
        operations = pc.if_else(is_word, string(meaning), operations)
    if operations.null_count:
        unknown = operations.is_null()
        row = pc.index(unknown, TRUE).as_py()
        listed = ", ".join(f"{word!r} ({meaning})" for word, meaning in plan.operations.items())
        problem = f"is not an operation: the words are {listed}"
        raise InvalidRow(
            f"Column {plan.operation} ({shorten(as_python(values[row]))}) {problem}, in {row_text(row)}.",
            f"Correct or drop such rows, or add the word to {OPERATIONS}.",
            column=plan.operation,
            problem=f"Column {plan.operation} {problem}.",
            rows=unknown,
        )
    return operations


def are_deletes(operations: pa.Array) -> pa.Array:
    """Flag the rows that are deletes.

    :param operations: the result of `operations_of_rows`.
    """
    return pc.equal(operations, _DELETE)


def without_values_of_deletes(
    batch: pa.RecordBatch, deletes: pa.Array, keys: Collection[str]
) -> pa.RecordBatch:
    """Replace the values of deletes by nulls, except in the key.

    A delete writes only its key. If the other values are null, no check refuses them and no log stores them.
    """
    if not pc.any(deletes).as_py():
        return batch
    columns = [
        column if name in keys else pc.if_else(deletes, null(column.type), column)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def except_deletes(flags: pa.Array, deletes: pa.Array | None) -> pa.Array:
    """Return the flags of rows, with False for deletes.

    :param deletes: None if no row is a delete.
    """
    return flags if deletes is None else pc.if_else(deletes, FALSE, flags)


# --- unavailable cells ----------------------------------------------------------------------------

Flags = Mapping[str, pa.Array]
"""By column, the flags of its unavailable cells. No flag is null."""

_SOURCES = (str(pa.string()), str(pa.binary()))


class Marked(NamedTuple):
    """A batch with nulls in place of its unavailable cells."""

    rows: pa.RecordBatch
    flags: Flags
    """The flags of each column that may have unavailable cells."""


def mark(rows: pa.RecordBatch, plan: Plan, key: Sequence[str]) -> Marked:
    """Replace unavailable cells by nulls, and flag them.

    :param rows: the rows of the DataFrame.
    :param key: the columns of the key, in which the placeholder text is an ordinary value.
    """
    columns, flags = dict(zip(rows.schema.names, rows.columns, strict=True)), dict[str, pa.Array]()
    for column in plan.of_table().columns if plan.unavailable else ():
        if column.source in _SOURCES and column.name not in key:
            values = _plain(columns[column.name])
            word = plan.unavailable
            placeholder = string(word) if is_text(values.type) else blob(word.encode())
            flag = flags[column.name] = pc.fill_null(pc.equal(values, placeholder), FALSE)
            if pc.any(flag).as_py():
                columns[column.name] = pc.if_else(flag, null(values.type), values)
    return Marked(pa.RecordBatch.from_arrays([*columns.values()], names=[*columns]), flags)


def _plain(values: pa.Array) -> pa.Array:
    """Cast to `string` or `binary`, since Arrow cannot compare dictionaries and some layouts of texts."""
    if pt.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    return values.cast(pa.string() if is_text(values.type) else pa.binary())


def flag_name(column: str) -> str:
    """Return the name under which the log stores the flags of a column."""
    return f"wal_sink:unavailable:{column}"


def with_flags(rows: pa.RecordBatch, flags: Flags) -> pa.RecordBatch:
    """Return rows as the log stores them: the plan's columns, followed by the flags."""
    names = [*rows.schema.names, *map(flag_name, flags)]
    return pa.RecordBatch.from_arrays([*rows.columns, *flags.values()], names=names)


def flags_of(batch: pa.RecordBatch, plan: Plan) -> Flags:
    """Return the flags that the log stores for rows. Empty if no cell is unavailable."""
    names = [column.name for column in plan.columns if flag_name(column.name) in batch.schema.names]
    flags = {name: batch.column(flag_name(name)) for name in names}
    return flags if any(pc.any(flag).as_py() for flag in flags.values()) else {}


def any_unavailable(flags: Iterable[pa.ChunkedArray]) -> pa.ChunkedArray:
    """Flag the rows that have an unavailable cell in any of the columns.

    :param flags: the flags of at least one column.
    """
    return functools.reduce(pc.or_, flags)


def new_row_error() -> InvalidRow:
    """Return the error for a row that has an unavailable cell, and whose key the table lacks."""
    return InvalidRow(
        f"The table has no row of this key, and a value of the row is unavailable ({UNAVAILABLE_VALUE}).",
        "Let the source send this row whole, such as by an incremental snapshot of Debezium: a new row"
        " needs all of its values.",
    )
