"""Rows of a batch that are deletes, by the operation column; no I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.errors import InvalidRow
from wal_sink.model.plan import Plan
from wal_sink.targets.arrow_values import FALSE, TRUE, as_python, null, shorten, text
from wal_sink.targets.operations import DELETE, OPERATION_COLUMN, OPERATIONS

_DELETE = text(DELETE)


def operations_of_rows(
    batch: pa.RecordBatch, plan: Plan, row_text: Callable[[int], str]
) -> pa.Array | None:
    """Return the operation of each row, as the log stores it. None if the plan has no operation column.

    :param row_text: returns the text by which errors name the row at a position.
    :raises InvalidRow: a word is unknown or null.
    """
    if plan.operation is None:
        return None
    values = batch.column(plan.operation)
    words, operations = values.cast(pa.string()), pa.nulls(len(values), pa.string())
    for word, meaning in plan.operations.items():
        is_word = pc.fill_null(pc.equal(words, text(word)), FALSE)
        operations = pc.if_else(is_word, text(meaning), operations)
    if operations.null_count:
        unknown = operations.is_null()
        row = pc.index(unknown, TRUE).as_py()
        listed = ", ".join(f"{word!r} ({meaning})" for word, meaning in plan.operations.items())
        problem = f"is not an operation: {OPERATION_COLUMN} knows {listed}"
        raise InvalidRow(
            f"Column {plan.operation} ({shorten(as_python(values[row]))}) {problem}, in {row_text(row)}.",
            f"Correct or drop such rows, or add the word to {OPERATIONS}.",
            column=plan.operation,
            problem=f"Column {plan.operation} {problem}.",
            rows=unknown,
        )
    return operations


def are_deletes(operations: pa.Array) -> pa.Array:
    """Return which rows are deletes.

    :param operations: the result of `operations_of_rows`.
    """
    return pc.equal(operations, _DELETE)


def without_values_of_deletes(
    batch: pa.RecordBatch, deletes: pa.Array, keys: Collection[str]
) -> pa.RecordBatch:
    """Return the batch with nulls in place of the values of deletes outside of the key.

    A delete writes no such value. So no check refuses the row for it, and the log does not store it.
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
