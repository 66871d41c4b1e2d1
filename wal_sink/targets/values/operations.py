"""The values of an operation column: words of the DataFrame, and what they mean, as the log has it.

Kernels of Arrow only: no Python object for a row. `targets.operations` has the options.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.errors import InvalidRow
from wal_sink.model.plan import Plan
from wal_sink.targets.operations import DELETE, OPTION, WORDS_OPTION, Operation, planned_words
from wal_sink.targets.values import literals
from wal_sink.targets.values.literals import FALSE, TRUE
from wal_sink.targets.values.text import plain, shorten

_DELETE = literals.text(DELETE)


class BadWord(NamedTuple):
    """The first row that is neither an upsert nor a delete."""

    row: int
    problem: str
    """Continues "Column c of t (value) …"."""
    remedy: str
    rows: pa.Array
    """All such rows, as flags."""


class Read(NamedTuple):
    """An operation column, understood."""

    operations: pa.Array
    """Strings, `upsert` or `delete`; null for a word that is not known."""
    bad: BadWord | None


def read_operations(words: pa.Array, known: Mapping[str, Operation]) -> Read:
    """Translate the words of a DataFrame's column.

    :param known: what each word means.
    """
    encoded = words.cast(pa.string()).dictionary_encode()
    meant = {word.encode(): meaning for word, meaning in known.items()}
    distinct = [meant.get(each) for each in encoded.dictionary.cast(pa.binary()).to_pylist()]
    texts = [literals.null(pa.string()) if m is None else literals.text(m) for m in distinct]
    operations = _array(texts).take(encoded.indices)
    if not operations.null_count:
        return Read(operations, None)
    row = pc.index(operations.is_null(), TRUE).as_py()
    listed = ", ".join(f"{word!r} ({meaning})" for word, meaning in known.items())
    return Read(
        operations,
        BadWord(
            row,
            f"is no operation: {OPTION} knows {listed}",
            f"Correct or drop such rows, or add the word to {WORDS_OPTION}.",
            operations.is_null(),
        ),
    )


def planned_operations(
    batch: pa.RecordBatch, plan: Plan, row_text: Callable[[int], str]
) -> pa.Array | None:
    """Return what each row of a batch does, as the log has it; None where a plan has no operation column.

    :param row_text: names a row by its position in the batch, for errors.
    :raises InvalidRow: a word is unknown, or null.
    """
    if plan.operation is None:
        return None
    values = batch.column(plan.operation)
    operations, bad = read_operations(values, planned_words(plan))
    if bad:
        raise InvalidRow(
            f"Column {plan.operation} ({shorten(plain(values[bad.row]))}) {bad.problem}, in"
            f" {row_text(bad.row)}.",
            bad.remedy,
            column=plan.operation,
            problem=f"Column {plan.operation} {bad.problem}.",
            rows=bad.rows,
        )
    return operations


def are_deletes(operations: pa.Array) -> pa.Array:
    """Return which rows are deletes.

    :param operations: as the log has them.
    """
    return pc.equal(operations, _DELETE)


def keys_of_deletes(
    batch: pa.RecordBatch, deletes: pa.Array, keys: Collection[str]
) -> pa.RecordBatch:
    """Return the batch with nulls in place of what deletes have beside the key: that has no meaning.

    So no row is refused for a value that nobody writes, and the log does not hold it.
    """
    if not pc.any(deletes).as_py():
        return batch
    positions: pa.Array | None = None
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name not in keys and column.null_count < len(column):
            if positions is None:
                positions = _positions(deletes)
            column = column.take(positions)  # noqa: PLW2901 -- a null position makes a null of any type
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _positions(deletes: pa.Array) -> pa.Array:
    """Return each row's own position, null for a delete."""
    ends = pc.cumulative_sum(pc.is_valid(deletes).cast(pa.int64()))
    own = pc.subtract(ends, literals.long(1))
    return pc.if_else(deletes, literals.null(pa.int64()), own)


def _array(scalars: list[pa.Scalar]) -> pa.Array:
    """Return strings in one array; `pyarrow.array` would import pandas, see `literals`."""
    if not scalars:
        return pa.nulls(0, pa.string())
    return pa.concat_arrays([pa.repeat(each, 1) for each in scalars])


def not_deleted(flags: pa.Array, deletes: pa.Array | None) -> pa.Array:
    """Return flags of rows without those of deletes; None: no row is one."""
    return flags if deletes is None else pc.if_else(deletes, FALSE, flags)
