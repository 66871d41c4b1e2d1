"""Columns of a DataFrame that say what becomes of a row, and are not written themselves. Pure."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pyarrow.types as pt

from wal_sink.errors import SchemaMismatch


def named_column(schema: pa.Schema, option: str, column: str) -> pa.DataType:
    """Return the type of the column that an option names.

    :raises SchemaMismatch: the DataFrame lacks it, or has several of that name.
    """
    count = schema.names.count(column)
    if count != 1:
        raise SchemaMismatch(
            f"Option {option} is {column}, and the DataFrame has {count or 'no'} such"
            f" column{'s' * (count > 1)}; it has {', '.join(schema.names)}.",
            f"Add it, .withColumn({column!r}, …), or correct {option}.",
        )
    return schema.field(column).type


def refuse_written(
    option: str, column: str, known: Collection[str], place: object, what: str = ""
) -> None:
    """Refuse a column that a table has, too: there it would not be written.

    :param known: the names of the table's columns.
    :param place: the table, or several, as errors show it.
    :param what: the column holds, if the option is not about all that it holds.
    :raises SchemaMismatch: it has it.
    """
    if column in known:
        raise SchemaMismatch(
            f"Option {option} is {column}, which is a column of {place}, and {what or 'is'} not written.",
            f"Give it another name, .withColumnRenamed({column!r}, …); to keep it in the table as well, write"
            " a copy under another name.",
        )


def without_words(
    schema: pa.Schema, option: str, column: str, known: Collection[str], place: object, words: str
) -> pa.Schema:
    """Return the columns of a DataFrame without one of words; no change for an empty name.

    :param option: that names it.
    :param known: the names of the table's columns.
    :param place: the table, or several, as errors show it.
    :param words: that the column may have, as the remedy says it.
    :raises SchemaMismatch: the DataFrame lacks the column, or has another type; or the table has one of that
        name.
    """
    if not column:
        return schema
    kind = named_column(schema, option, column)
    refuse_written(option, column, known, place)
    if not is_text(kind):
        raise SchemaMismatch(
            f"Column {column}, which {option} names, is {kind} in the DataFrame.",
            f'Make it a string of {words}: .cast("string").',
        )
    return schema.remove(schema.names.index(column))


def is_text(kind: pa.DataType) -> bool:
    """Whether values of an Arrow type can be words."""
    if pt.is_dictionary(kind):
        return is_text(kind.value_type)
    return bool(pt.is_string(kind) or pt.is_large_string(kind))
