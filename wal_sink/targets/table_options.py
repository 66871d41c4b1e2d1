"""Options of a target that can create its table, and the layout of the new table. Pure.

The option createTable creates a missing table from the DataFrame's schema. A target with this option derives
its options from `TableOptions`. `wal_sink.check` creates no table: it shows the statement of the start.
Without the option the error has the statement to run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Annotated, ClassVar, NamedTuple

import msgspec
import pyarrow as pa

from wal_sink.errors import OptionError, SchemaMismatch
from wal_sink.options import SHAPES, Options, about
from wal_sink.unknown_names import did_you_mean

CREATE_TABLE, KEY_COLUMNS, PARTITION_COLUMNS = "createTable", "keyColumns", "partitionColumns"


class Layout(NamedTuple):
    """The key and the partitions of a new table."""

    key: tuple[str, ...] = ()
    partition: tuple[str, ...] = ()


NO_LAYOUT = Layout()

_COMMA = re.compile(r",(?![^()]*\))")
"""A comma outside of parentheses: a partition may be `bucket(16, id)`."""


def without_effect(option: str, problem: str, other: str, value: str = "upsert") -> OptionError:
    """Return the error of an option that needs a value of another option.

    :param problem: the present value of the other option, and why it does not fit. Continues "Option … is
        given ".
    :param other: the other option.
    :param value: the value that `option` needs.
    """
    return OptionError(
        f"Option {option} is given {problem}.",
        f"Set {other} to {value}, or leave out {option}.",
    )


def refuse_repeated(option: str, names: Iterable[str]) -> None:
    """Check that an option has each name once.

    :raises OptionError: a name is repeated.
    """
    for name, count in Counter(names).items():
        if count > 1:
            raise OptionError(f"Option {option} has '{name}' twice.", "Leave out one of the two.")


class TableOptions(Options, frozen=True, kw_only=True):
    """The base for options of a target that creates tables."""

    key_alone: ClassVar[bool] = False
    """True if the target reads keyColumns for an existing table, too."""

    create_table: Annotated[
        bool, about("whether a missing table is created from the DataFrame's schema")
    ] = msgspec.field(name=CREATE_TABLE, default=False)
    key_columns: Annotated[
        str,
        about(
            "columns of the key, comma-separated; a table that createTable creates has this key",
            SHAPES,
        ),
    ] = msgspec.field(name=KEY_COLUMNS, default="")
    partition_columns: Annotated[
        str,
        about("columns by which a table that createTable creates is partitioned, comma-separated"),
    ] = msgspec.field(name=PARTITION_COLUMNS, default="")

    @property
    def layout(self) -> Layout:
        """The key and the partitions of a new table.

        :raises OptionError: a column is repeated, or an option would have no effect.
        """
        listed = []
        options = {KEY_COLUMNS: self.key_columns, PARTITION_COLUMNS: self.partition_columns}
        for option, text in options.items():
            names = tuple(name.strip() for name in _COMMA.split(text) if name.strip())
            is_read = self.create_table or (option == KEY_COLUMNS and self.key_alone)
            if names and not is_read:
                problem = f"without {CREATE_TABLE}: an existing table stays as it is"
                raise without_effect(option, problem, CREATE_TABLE, "true")
            refuse_repeated(option, names)
            listed.append(names)
        return Layout(*listed)


def refuse_key_and_mode(option: str, mode: str, layout: Layout) -> None:
    """Check that the key of a new table fits the mode.

    :param option: the option that sets `mode`.
    :param mode: append or upsert.
    :raises OptionError: an upsert has no key, or an append has a key, which would refuse a second row of it.
    """
    if mode == "upsert" and not layout.key:
        raise OptionError(
            f"Option {CREATE_TABLE} is true and {option} is upsert: the new table needs a key.",
            f"Name its columns in {KEY_COLUMNS}.",
        )
    if mode == "append" and layout.key:
        raise without_effect(
            KEY_COLUMNS, f"and {option} is append: a second row of a key would be refused", option
        )


def refuse_unknown_columns(layout: Layout, schema: pa.Schema) -> None:
    """Check that the DataFrame has the columns of a layout.

    :param schema: the columns that are written.
    :raises SchemaMismatch: the DataFrame lacks a column.
    """
    for option, names in zip((KEY_COLUMNS, PARTITION_COLUMNS), layout, strict=True):
        for name in names:
            if name not in schema.names:
                raise SchemaMismatch(
                    f"Option {option} names {name}, and the DataFrame has {', '.join(schema.names)}."
                    f" {did_you_mean(name, schema.names)}".rstrip(),
                    f"Correct {option}, or add the column.",
                )


def refuse_other_key(table: object, layout: Layout, key: Collection[str]) -> None:
    """Check that an existing table has the key that keyColumns names.

    :param key: the key of the table, by the DataFrame's names.
    :raises SchemaMismatch: it has another key, so rows would replace other rows than expected.
    """
    if layout.key and {*layout.key} != {*key}:
        raise SchemaMismatch(
            f"Option {KEY_COLUMNS} names {', '.join(layout.key)}, and {table} exists with the key"
            f" {', '.join(key)}.",
            f"Correct {KEY_COLUMNS}, or create the table again with this key.",
        )
