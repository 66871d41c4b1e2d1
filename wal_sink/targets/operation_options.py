"""Options for deletes and for cells that keep their value, and the columns that these options name. No I/O.

A target that deletes rows derives its options from `OperationOptions`. Every other target refuses these
options. `targets.cdc` reads the operation column.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated

import msgspec
import pyarrow as pa

from wal_sink.errors import OptionError
from wal_sink.model.plan import Column, Operation
from wal_sink.options import SHAPES, about, json_pairs
from wal_sink.targets.columns import refuse_column_in_table, refuse_named_column
from wal_sink.targets.ddl import TableOptions, without_effect

UPSERT: Operation = "upsert"
DELETE: Operation = "delete"

OPERATION_COLUMN, OPERATIONS = "operationColumn", "operations"
UNAVAILABLE_VALUE = "unavailableValue"

OperationColumn = Annotated[
    str,
    about(
        "A string column that says whether a row is an upsert or a delete. It is not written",
        SHAPES,
    ),
]
Operations = Annotated[
    str,
    about(
        'JSON object of the words in operationColumn, such as {"U": "upsert", "D": "delete"}.'
        " Default: the words upsert and delete",
        SHAPES,
    ),
]

_DEFAULT: Mapping[str, Operation] = {UPSERT: UPSERT, DELETE: DELETE}
_EXAMPLE = f'{OPERATIONS}={{"U": "{UPSERT}", "D": "{DELETE}"}}'

BY_POSITION = (
    "the later of two rows with one key stays. In one micro-batch after a shuffle it may be either"
)
"""The line that a start logs about the order of rows with one key, if no column has their time."""


def read_words(column: str, text: str) -> Mapping[str, Operation]:
    """Return the operation of each word, from the options `operationColumn` and `operations`.

    :raises OptionError: the options contradict each other, or `operations` is malformed.
    """
    if not text.strip():
        return _DEFAULT
    if not column:
        raise OptionError(
            f"Option {OPERATIONS} is given without {OPERATION_COLUMN}.",
            f"Name the column that holds these words in {OPERATION_COLUMN}, or leave out {OPERATIONS}.",
        )
    words: dict[str, Operation] = {}
    for word, meaning in json_pairs(OPERATIONS, text, _EXAMPLE):
        if not isinstance(meaning, str) or meaning not in _DEFAULT:
            raise OptionError(
                f"Option {OPERATIONS} says that {word!r} means {meaning!r}.",
                f"A row is an {UPSERT} or a {DELETE}; filter others out of the DataFrame. Write it as"
                f" {_EXAMPLE}.",
            )
        words[word] = _DEFAULT[meaning]
    for meaning in _DEFAULT:
        if meaning not in words.values():
            raise OptionError(
                f"Option {OPERATIONS} has no word that means {meaning}.",
                f"Write it as {_EXAMPLE}. Without deletes leave out {OPERATION_COLUMN}.",
            )
    return words


class OperationOptions(TableOptions, frozen=True, kw_only=True):
    """Base class for the options of a target that creates tables and deletes rows."""

    operation_column: OperationColumn = msgspec.field(name=OPERATION_COLUMN, default="")
    operations: Operations = msgspec.field(name=OPERATIONS, default="")
    unavailable_value: Annotated[
        str,
        about(
            "Text of a cell that an upsert leaves as it is, such as __debezium_unavailable_value; in columns"
            " of strings or binary beside the key. Default: no text is one",
            SHAPES,
        ),
    ] = msgspec.field(name=UNAVAILABLE_VALUE, default="")

    @property
    def words(self) -> Mapping[str, Operation]:
        """The operation of each word of the operation column.

        :raises OptionError: the options contradict each other, or `operations` is malformed.
        """
        return read_words(self.operation_column, self.operations)

    def refuse_without_key(self, option: str, mode: str) -> None:
        """Refuse options about deletes and unavailable cells if the mode is not upsert.

        :param option: the option that sets `mode`.
        :param mode: append or upsert.
        :raises OptionError: an option is malformed, or needs the mode upsert.
        """
        read_words(self.operation_column, self.operations)
        if self.operation_column and mode != "upsert":
            problem = f"and {option} is {mode}: without a key no row can be found to delete"
            raise without_effect(OPERATION_COLUMN, problem, option)
        if self.unavailable_value and mode != "upsert":
            problem = (
                f"and {option} is {mode}: a row that is added has no older value that could stay"
            )
            raise without_effect(UNAVAILABLE_VALUE, problem, option)


def without_operation(
    schema: pa.Schema, column: str, known: Collection[str], table: object
) -> pa.Schema:
    """Return the columns of a DataFrame without the operation column.

    :param column: the operation column. Empty if option operationColumn is not set.
    :param known: the names of the table's columns. Empty if there is no table.
    :param table: the table, as errors name it.
    :raises SchemaMismatch: the DataFrame lacks the column, its type is not a string, or the table has a
        column of this name.
    """
    if not column:
        return schema
    remedy = f'Make it a string of the words that mean {UPSERT} and {DELETE}: .cast("string").'
    refuse_named_column(schema, OPERATION_COLUMN, column, ("string",), remedy)
    refuse_column_in_table(OPERATION_COLUMN, column, known, table)
    return schema.remove(schema.names.index(column))


def with_operation(columns: Sequence[Column], schema: pa.Schema, column: str) -> tuple[Column, ...]:
    """Insert the operation column into a plan's columns, at its position in the DataFrame.

    :param columns: the plan's columns without the operation column.
    :param column: the operation column. Empty if option operationColumn is not set.
    """
    if not column:
        return tuple(columns)
    position = schema.names.index(column)
    operation = Column(name=column, source=str(pa.string()), type="operation", role="operation")
    return (*columns[:position], operation, *columns[position:])


def described(options: OperationOptions) -> dict[str, str]:
    """Return the lines about deletes and unavailable cells that a start logs, by heading."""
    headings = dict[str, str]()
    if column := options.operation_column:
        deletes = " or ".join(word for word, meaning in options.words.items() if meaning == DELETE)
        headings["deletes"] = f"rows whose {column} is {deletes} ({OPERATION_COLUMN})"
    if text := options.unavailable_value:
        headings["unavailable"] = f"a cell that is {text} keeps its value ({UNAVAILABLE_VALUE})"
    return headings
