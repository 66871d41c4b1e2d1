"""Which tables can hold totals that rows are added to. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Column
from wal_sink.targets.cassandra.schema.alike import alike
from wal_sink.targets.cassandra.schema.table_metadata import TableMetadata
from wal_sink.targets.cassandra.totals.given import ADDED_COLUMN, OPTION
from wal_sink.targets.cassandra.types.cql_type import parse

NUMBERS = ("tinyint", "smallint", "int", "bigint", "varint", "decimal", "float", "double")


def refuse_no_totals(live: TableMetadata, columns: Sequence[Column], added: Sequence[str]) -> None:
    """Refuse a table, or a DataFrame, by which values cannot be added to totals exactly once.

    :param columns: those of the table that the DataFrame has.
    :param added: the columns whose values are added, as the DataFrame names them; empty refuses nothing.
    :raises SchemaMismatch: with a line for each thing that does not fit.
    """
    if not added:
        return
    by_name = {column.name: column for column in columns}
    about = [(name, _why_no_total(by_name.get(name))) for name in added]
    about += [(c.name, _why_not_beside(c, live)) for c in columns if c.name not in added]
    problems = [f"{name}: {why}" for name, why in about if why] + [*_about_table(live)]
    problems += [*_about_lives(live)]
    if problems:
        raise SchemaMismatch(
            f"{live.name} cannot hold the totals of {OPTION}:\n"
            + "\n".join(f"  - {problem}" for problem in problems),
            "Correct each line above, and start again.",
        )


def refuse_expiring(live: TableMetadata) -> None:
    """Refuse a table whose totals would expire since it was altered.

    :raises SchemaMismatch: it has a default time to live.
    """
    for problem in _about_lives(live):
        raise SchemaMismatch(
            f"{live.name} cannot hold the totals of {OPTION} any more:\n  - {problem}",
            "The flush then goes on by itself. What was written meanwhile expires: write such totals again.",
        )


def _why_no_total(column: Column | None) -> str:
    """Say why a column cannot hold a total; empty: it can."""
    if column is None:
        return f"the DataFrame has no such column. Add it, or correct {OPTION}."
    if column.role != "regular":
        return f"it is a {column.role} column. Only a regular column can hold a total."
    if column.type not in NUMBERS:
        return f"it is {column.type}. A total is one of {', '.join(NUMBERS)}."
    if column.source in ("string", "large_string"):
        return 'the DataFrame has text. Make it a number, .cast("decimal(38,0)").'
    return ""


def _why_not_beside(column: Column, live: TableMetadata) -> str:
    """Say why a column cannot be written beside totals; empty: it can."""
    tree = parse(column.type, live.types)
    if column.in_table == ADDED_COLUMN:
        return f"the sink writes {ADDED_COLUMN}. Drop it, or rename it."
    if column.role == "static":
        return "it is static, so it is not of the row alone. Write it by another query."
    if why := alike(column, live):
        return f"{why}, and would be added to as two. Take another type."
    if tree.kind == "list" and not tree.frozen:
        return "it is a list that is not frozen. Write it by another query."
    return ""


def _about_table(live: TableMetadata) -> Iterator[str]:
    found = next((column for column in live.columns if column.name == ADDED_COLUMN), None)
    if found is None:
        yield (
            f"{ADDED_COLUMN}: the table has no such column, which says what is in the totals of a row. Run:"
            f" ALTER TABLE {live.name} ADD {ADDED_COLUMN} text;"
        )
    elif (found.type, found.role) != ("text", "regular"):
        yield f"{ADDED_COLUMN}: it is {found.type} ({found.role}), and has to be text (regular)."


def _about_lives(live: TableMetadata) -> Iterator[str]:
    if live.default_ttl:
        yield (
            f"default_time_to_live is {live.default_ttl}: a total that expires forgets what was added. Run:"
            f" ALTER TABLE {live.name} WITH default_time_to_live = 0;"
        )
