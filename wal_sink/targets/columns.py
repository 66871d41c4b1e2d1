"""Compares the columns of a DataFrame with the columns of a table. One error names all differences. No I/O.

A target supplies its rules about types, and the statements that errors propose. Before rows are flushed,
their plan is compared with the table again, since an altered table might refuse or change the rows.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import pyarrow as pa

from wal_sink.errors import OptionError, SchemaMismatch
from wal_sink.model.codec import digest
from wal_sink.model.plan import Column, Plan, Role
from wal_sink.model.spark_types import canonical, spark_ddl, spark_type
from wal_sink.unknown_names import did_you_mean

SAME: Mapping[str, str] = MappingProxyType({})
"""No column has another name in the table than in the DataFrame."""


class TableColumn(NamedTuple):
    """A column of the table, from the database's catalogue."""

    name: str
    type: str
    """The type in the database's words, such as `numeric(10,2)`."""
    required: bool = False
    """True if the column takes no null."""
    default: bool = False
    """True if the database fills the column in for a row that omits it."""
    computed: bool = False
    """True if the database computes the column and takes no value."""
    role: Role | None = None
    """The role in the plan. None for the role "required" if `required` is true, otherwise "regular"."""


class TableRules(ABC):
    """A database's rules about types, and its statements that alter tables."""

    noun = "the table"
    """The noun for the table in errors."""

    @abstractmethod
    def about_type(self, field: pa.Field, column: TableColumn) -> Sequence[str]:
        """Return a line with a remedy for each reason why a column cannot hold the DataFrame's type.

        A column can hold a type if the cast keeps each value unchanged, or refuses the value.
        """

    def types_differ(self, field: pa.Field, words: str, remedy: str) -> str:
        """Return the line about a column whose type cannot hold the DataFrame's type.

        :param words: the column's type in the database's words.
        """
        differ = f"{self.noun}'s type is {words}, the DataFrame's {spark_ddl(field.type)}"
        return f"{field.name}: {differ}. {remedy}"

    def about_missing(self, field: pa.Field, free: Collection[str]) -> str:
        """Return the remedy for a column of the DataFrame that the table lacks.

        :param free: the table's columns that the DataFrame does not write. If the name of one of them differs
            by case only, the remedy is to rename the DataFrame's column.
        """
        if meant := [other for other in sorted(free) if other.lower() == field.name.lower()]:
            return f'Rename it, .withColumnRenamed("{field.name}", "{meant[0]}").'
        add = self.to_add(field)
        return f"Rename or drop it{f', or {add}' if add else '.'}"

    def about_required(self, column: TableColumn) -> str:
        """Return why the DataFrame must have a column that it lacks, and a remedy."""
        allow = self.to_allow_null(column)
        return (
            "it takes no null, has no default, and is not in the DataFrame. Add"
            f" it{f', or {allow}' if allow else '.'}"
        )

    def to_add(self, field: pa.Field) -> str:  # noqa: ARG002 -- for overrides
        """Return how to add a column to the table. The text continues "Rename or drop it, or "."""
        return ""

    def to_allow_null(self, column: TableColumn) -> str:  # noqa: ARG002 -- for overrides
        """Return how to let a column take nulls. The text continues "Add it, or "."""
        return ""


def to_cast(name: str, ddl: str) -> str:
    """Return the remedy that casts a column of the DataFrame.

    :param ddl: the type in Spark's DDL.
    """
    return f"Cast it, {cast_to(name, ddl)}"


def cast_to(name: str, ddl: str) -> str:
    """Return the PySpark code that casts a column of the DataFrame."""
    return with_column(name, f'F.col("{name}").cast("{ddl}")')


def with_column(name: str, expression: str) -> str:
    """Return the PySpark code that replaces a column of the DataFrame."""
    return f'.withColumn("{name}", {expression})'


def match_columns(
    schema: pa.Schema,
    columns: Sequence[TableColumn],
    table: str,
    rules: TableRules,
    others: Iterable[str] = (),
    names: Mapping[str, str] = SAME,
) -> tuple[Column, ...]:
    """Compare a DataFrame with a table. Return the plan's columns, in the order of the DataFrame's columns.

    :param columns: the columns of the table.
    :param table: the table, as errors name it.
    :param others: lines about further problems.
    :param names: the table's name of each DataFrame column that has another name in the table.
    :raises SchemaMismatch: the DataFrame does not fit. The error has a line for each problem.
    """
    by_name = {column.name: column for column in columns}
    pairs = [(field, by_name.get(names.get(field.name, field.name))) for field in schema]
    problems = [*_about_names(schema, by_name, rules, names)]
    for field, column in pairs:
        if column is not None and not column.computed:
            problems += rules.about_type(field, column)
    problems += others
    if problems:
        raise SchemaMismatch(
            f"The DataFrame does not fit {table}:\n"
            + "\n".join(f"  - {problem}" for problem in problems),
            "Correct each line above, and start again.",
        )
    return tuple(
        Column(
            name=field.name,
            source=str(canonical(field.type)),
            type=column.type,
            role=column.role or ("required" if column.required else "regular"),
            column=names.get(field.name, ""),
        )
        for field, column in pairs
        if column is not None
    )


def _about_names(
    schema: pa.Schema,
    by_name: Mapping[str, TableColumn],
    rules: TableRules,
    names: Mapping[str, str],
) -> Iterator[str]:
    written = {names.get(name, name) for name in schema.names}
    free = by_name.keys() - written
    for name, count in Counter(schema.names).items():
        if count > 1:
            yield f"{name}: the DataFrame has {count} columns of this name. Rename all but one."
    for field in {field.name: field for field in schema}.values():
        name = names.get(field.name, field.name)
        column = by_name.get(name)
        if column is None:
            lacking = f"no column {name}" if field.name in names else "no such column"
            hint = did_you_mean(name, free)
            yield (
                f"{field.name}: {rules.noun} has {lacking}. {hint}{' ' if hint else ''}"
                f"{rules.about_missing(field, free)}"
            )
        elif column.computed:
            yield f"{field.name}: the server computes this column and takes no value. Drop it."
    for column in by_name.values():
        filled = column.default or column.computed
        if column.required and not filled and column.name not in written:
            yield f"{column.name}: {rules.about_required(column)}"


def refuse_equal_but_for_case(names: Collection[str], database: str) -> None:
    """Refuse new columns whose names differ by case only, for a database that ignores the case of names.

    :raises SchemaMismatch: there are two such columns.
    """
    numbers = Counter(name.lower() for name in {*names})
    if alike := [name for name in names if numbers[name.lower()] > 1]:
        raise SchemaMismatch(
            f"The names of the columns {', '.join(alike)} differ by case only, and {database} takes them for"
            " the same name.",
            f"Rename all but one, .withColumnRenamed({alike[-1]!r}, …).",
        )


def refuse_named_column(
    schema: pa.Schema, option: str, column: str, taken: tuple[str, ...], remedy: str
) -> None:
    """Refuse a DataFrame unless an option names exactly one of its columns, of an allowed type.

    :param taken: the names of the allowed types in Spark, without parameters, such as "decimal".
    :param remedy: the remedy for another type.
    :raises SchemaMismatch: the column has another type, is missing, or exists several times.
    """
    count = schema.names.count(column)
    if count != 1:
        raise SchemaMismatch(
            f"Option {option} is {column}, and the DataFrame has {count or 'no'} such"
            f" column{'s' * (count > 1)}; it has {', '.join(schema.names)}.",
            f"Add the column, .withColumn({column!r}, …), or correct {option}.",
        )
    type_ = schema.field(column).type
    if spark_type(type_) not in taken:
        raise SchemaMismatch(
            f"Column {column}, which option {option} names, is {spark_ddl(type_)} in the DataFrame.",
            remedy,
        )


def refuse_column_in_table(
    option: str, column: str, known: Collection[str], table: object, what: str = ""
) -> None:
    """Refuse a column that the sink only reads if the table has a column of the same name.

    The user would expect the sink to write the table's column.

    :param known: the names of the table's columns.
    :param table: the table, or several tables, as errors name them.
    :param what: the part of the column that is not written. Empty if no part is written.
    :raises SchemaMismatch: the table has such a column.
    """
    if column in known:
        raise SchemaMismatch(
            f"Option {option} is {column}, which is a column of {table}, and {what or 'is'} not written.",
            f"Rename it, .withColumnRenamed({column!r}, …). To keep it in the table as well, write"
            " a copy under another name.",
        )


Holds = Callable[[TableColumn, Column], bool]
"""Returns True if a column's present type can hold every value of its planned type."""


def same_type(now: TableColumn, planned: Column) -> bool:
    """Return True if the type of a column has not changed since the plan was made."""
    return now.type == planned.type


def refuse_changed(
    plan: Plan,
    columns: Sequence[TableColumn],
    others: Iterable[str] = (),
    holds: Holds = same_type,
    *,
    nulls_are_refused: bool = False,
) -> Plan:
    """Return the plan with the present columns of the table, or refuse the table if it no longer fits.

    A wider type fits, since tasks have checked the pending rows against the narrower type. A new column fits
    if it takes nulls.

    :param columns: the present columns of the table.
    :param others: texts of further changes that do not fit.
    :param nulls_are_refused: True if the caller refuses each row with a null in a column that no longer takes
        nulls. False to refuse the table.
    :raises SchemaMismatch: the table no longer fits. The error names all changes.
    """
    now, written = {column.name: column for column in columns}, plan.of_table().columns
    changed = (_change(column, now.get(column.name), holds) for column in written)
    changes = [*filter(None, changed)]
    names = {column.name for column in written}
    changes += [
        f"column {column.name} takes no null any more"
        for column in written
        if not nulls_are_refused and _takes_no_null_now(column, now.get(column.name))
    ]
    changes += [
        f"column {column.name} is new and takes no null"
        for column in columns
        if column.required and not (column.default or column.computed or column.name in names)
    ]
    changes += others
    if not columns:
        changes = ["the table is gone"]
    if changes:
        raise has_changed(plan.table, changes)
    altered = tuple(
        _as_now(column, now[column.name]) if column.name in names else column
        for column in plan.columns
    )
    if altered == plan.columns:
        return plan
    key = digest(f"{plan.key} {altered}".encode())[:32]
    return msgspec.structs.replace(plan, key=key, columns=altered)


def has_changed(table: str, changes: Iterable[str]) -> SchemaMismatch:
    """Return the error for a table that no longer fits the pending rows."""
    return SchemaMismatch(
        f"Table {table} has changed since pending rows were checked against it: {'; '.join(changes)}.",
        "Change the table back, or create it again; then the flush continues. To change it for the next"
        " rows: stop the query, wait until no epoch is pending (wal-sink flush CHECKPOINT), change the"
        " table, and start the query.",
    )


def published_elsewhere(former: str, here: str, options: Iterable[str]) -> OptionError:
    """Return the error for pending rows that were published for another table than the options name.

    The flush stops, since the user has to decide which of the two tables gets the rows.

    :param former: the table that the plan of the rows names.
    :param here: the table that the options name.
    :param options: the options, as `name=value`, with which a command flushes to the former table.
    """
    flags = " ".join(f"--option {shlex.quote(option)}" for option in options)
    return OptionError(
        f"Pending rows were published for {former}, and the options name {here}.",
        f"If both names are right, run `wal-sink flush CHECKPOINT {flags}`. The command flushes the pending"
        " epochs into the former one, and the query continues. For one of several targets add --target NAME,"
        " and write NAME. before each option. If no option ever had the former name, somebody has edited the"
        " log.",
    )


def _as_now(column: Column, now: TableColumn) -> Column:
    role: Role = "required" if _takes_no_null_now(column, now) else column.role
    return msgspec.structs.replace(column, type=now.type, role=role)


def _takes_no_null_now(column: Column, now: TableColumn | None) -> bool:
    return now is not None and now.required and column.role == "regular"


def _change(column: Column, now: TableColumn | None, holds: Holds) -> str:
    if now is None:
        return f"column {column.name} is gone"
    if not holds(now, column):
        return f"column {column.name} was {column.type}, and is {now.type} now"
    if now.computed:
        return f"column {column.name} is computed by the server now"
    return ""


def refuse_other_schema(schema: pa.Schema, plan: Plan) -> None:
    """Refuse a batch that has other columns than the plan.

    :raises SchemaMismatch: a column has another name, type or position.
    """
    columns = [(field.name, str(canonical(field.type))) for field in schema]
    planned = [(column.name, column.source) for column in plan.columns]
    if columns != planned:
        raise SchemaMismatch(
            f"A batch for {plan.table} has the columns {_listed(columns)}; the plan {plan.key} was made for"
            f" {_listed(planned)}.",
            "Start the query again, so that a plan is made for this DataFrame.",
        )


def _listed(columns: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns)
