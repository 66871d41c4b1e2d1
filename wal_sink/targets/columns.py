"""Compares the columns of a DataFrame with those of a table: one error names all that does not fit. No I/O.

A target gives its own rules about types, and the statements that it proposes. The same table is compared
again when rows are flushed, with what was agreed: an altered table would refuse them, or change them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Column, Plan, canonical, spark_ddl
from wal_sink.targets.names import did_you_mean


class TableColumn(NamedTuple):
    """A column of the table, as the database's catalogue has it."""

    name: str
    type: str
    """In the database's words, such as `numeric(10,2)`."""
    required: bool = False
    """It takes no null."""
    default: bool = False
    """A row may leave it out although it takes no null: the database fills it in."""
    computed: bool = False
    """The database computes it, and takes no value."""


class TableRules(ABC):
    """What a database says of types, and what it takes to alter its table."""

    noun = "the table"
    """What errors call it."""

    @abstractmethod
    def about_type(self, field: pa.Field, column: TableColumn) -> str:
        """Say why a column cannot hold what the DataFrame has, and what to do; empty: it can.

        It can where a cast keeps each value, or refuses it, and changes none.
        """

    def types_differ(self, words: str, source: pa.DataType, remedy: str) -> str:
        """Say that a column's type does not hold that of the DataFrame.

        :param words: the column's type, in the database's words.
        """
        return f"{self.noun}'s type is {words}, the DataFrame's {spark_ddl(source)}. {remedy}"

    def to_add(self, field: pa.Field) -> str:  # noqa: ARG002 -- for those that override it
        """Return how to add a column for the DataFrame's; it goes on after "Rename or drop it, or "."""
        return ""

    def to_allow_null(self, column: TableColumn) -> str:  # noqa: ARG002 -- as above
        """Return how to let a column take nulls; it goes on after "Add it, or "."""
        return ""


def to_cast(name: str, ddl: str) -> str:
    """Return how to cast a column of the DataFrame.

    :param ddl: the type, in Spark's words.
    """
    return f'Cast it, .withColumn("{name}", F.col("{name}").cast("{ddl}"))'


def match_columns(
    schema: pa.Schema,
    columns: Sequence[TableColumn],
    table: str,
    rules: TableRules,
    others: Iterable[str] = (),
) -> tuple[Column, ...]:
    """Find the table's column for each column of the DataFrame, which has to have the same name.

    :param columns: of the table.
    :param table: its name, as errors write it.
    :param others: what else does not fit, a line each.
    :returns: in the DataFrame's order.
    :raises SchemaMismatch: with a line for each thing that does not fit.
    """
    by_name = {column.name: column for column in columns}
    problems = [
        *_about_names(schema, by_name, rules),
        *_about_types(schema, by_name, rules),
        *others,
    ]
    if problems:
        raise does_not_fit(table, problems)
    return tuple(
        Column(
            name=field.name,
            source=str(canonical(field.type)),
            type=by_name[field.name].type,
            role="required" if by_name[field.name].required else "regular",
        )
        for field in schema
    )


def does_not_fit(table: str, problems: Iterable[str]) -> SchemaMismatch:
    """Return the error of a DataFrame that does not fit a table.

    :param problems: each says what is wrong and what to do about it.
    """
    return SchemaMismatch(
        f"The DataFrame does not fit {table}:\n" + "\n".join(f"  - {each}" for each in problems),
        "Correct each line above, in the DataFrame or in the table, and start again.",
    )


def about_names(schema: pa.Schema) -> Iterator[str]:
    """Yield what is wrong with the names of a DataFrame's columns, whatever the table is."""
    for name, count in Counter(schema.names).items():
        if count > 1:
            yield f"{name}: the DataFrame has {count} columns of this name. Rename all but one."


def nearest(name: str, known: Collection[str], schema: pa.Schema) -> str:
    """Return a sentence, and a blank, about the table's column that a name may have meant; empty: none."""
    hint = did_you_mean(name, {*known} - {*schema.names})
    return f"{hint} " if hint else ""


def _about_names(
    schema: pa.Schema, by_name: dict[str, TableColumn], rules: TableRules
) -> Iterator[str]:
    yield from about_names(schema)
    for field in {field.name: field for field in schema}.values():
        column = by_name.get(field.name)
        if column is None:
            add = rules.to_add(field)
            yield (
                f"{field.name}: {rules.noun} has no such column. {nearest(field.name, by_name, schema)}Rename"
                f" or drop it{f', or {add}' if add else '.'}"
            )
        elif column.computed:
            yield f"{field.name}: the server computes this column and takes no value. Drop it."
    for column in by_name.values():
        filled = column.default or column.computed
        if column.required and not filled and column.name not in schema.names:
            allow = rules.to_allow_null(column)
            yield (
                f"{column.name}: it takes no null, has no default, and is not in the DataFrame. Add"
                f" it{f', or {allow}' if allow else '.'}"
            )


def _about_types(
    schema: pa.Schema, by_name: dict[str, TableColumn], rules: TableRules
) -> Iterator[str]:
    for field in schema:
        column = by_name.get(field.name)
        if column is None or column.computed:
            continue
        if why := rules.about_type(field, column):
            yield f"{field.name}: {why}"


def refuse_changed(
    plan: Plan,
    columns: Sequence[TableColumn],
    others: Iterable[str] = (),
    words: Callable[[str], str] = str,
) -> None:
    """Refuse a table that is no longer what the plan says; new columns that take nulls do not matter.

    :param columns: of the table, as it is now.
    :param others: what else has changed.
    :param words: returns a type as errors write it.
    :raises SchemaMismatch: names all that has changed.
    """
    now, planned = {column.name: column for column in columns}, plan.of_table().columns
    changes = [*filter(None, (_change(column, now.get(column.name), words) for column in planned))]
    names = {column.name for column in planned}
    changes += [
        f"column {column.name} is new and takes no null"
        for column in columns
        if column.required and not (column.default or column.computed or column.name in names)
    ]
    changes += others
    if changes:
        raise SchemaMismatch(
            f"The table {plan.table} has changed since rows were checked for it: {'; '.join(changes)}.",
            "Change the table back; the flush goes on by itself. Change it again when no epoch is pending.",
        )


def _change(column: Column, now: TableColumn | None, words: Callable[[str], str]) -> str:
    if now is None:
        return f"column {column.name} is gone"
    if now.type != column.type:
        return f"column {column.name} was {words(column.type)}, and is {words(now.type)} now"
    if now.computed:
        return f"column {column.name} is computed by the server now"
    if now.required and column.role != "required":
        return f"column {column.name} takes no null any more"
    return ""
