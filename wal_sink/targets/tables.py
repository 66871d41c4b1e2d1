"""Several tables of one target: the options, and what a start says of the column that names the table. Pure.

A target that writes to several tables declares the options in its own; every other one does not know them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

import pyarrow as pa
from msgspec import Meta

from wal_sink.model.plan import Column
from wal_sink.targets.unwritten import without_words

OPTION, COLUMN_OPTION = "tables", "tableColumn"

Tables = Annotated[
    str,
    Meta(
        description="instead of table: several, comma-separated; each row goes to every one of them, by the"
        " columns that it has"
    ),
]
TableColumn = Annotated[
    str,
    Meta(
        description="string column that says to which one of tables each row goes; it is not written"
    ),
]


def without_table_column(
    schema: pa.Schema, column: str, known: Collection[str], tables: str
) -> pa.Schema:
    """Return the columns of a DataFrame without that which names the table; no change for an empty name.

    :param known: the names of the columns of all tables.
    :param tables: the names of the tables, as errors show them.
    :raises SchemaMismatch: the DataFrame lacks the column, or has another type; or a table has one of that
        name, which would not be written.
    """
    words = f"the names that {OPTION} has"
    return without_words(schema, COLUMN_OPTION, column, known, f"one of {tables}", words)


def table_column(name: str) -> Column:
    """Return the plan's column of that which names the table."""
    return Column(name=name, source=str(pa.string()), type="table", role="table")
