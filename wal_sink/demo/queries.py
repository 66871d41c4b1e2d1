"""The three queries of the demo, their tables, and what has to be in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow as pa

from wal_sink.testing import flights
from wal_sink.testing.cassandra.embedded import EmbeddedCassandra

KEYSPACE = "travel"

_TENTH = ("origin", "day", "scheduled", "carrier", "flight")
_TENTH_TABLE = f"""
CREATE TABLE {KEYSPACE}.{{}} (
    key uuid PRIMARY KEY, origin text, day date, scheduled timestamp, carrier text, flight int
)
"""


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """One streaming query from a folder of files to a table."""

    name: str
    """What people see."""
    sink: Literal["wal_sink", "foreachBatch"]
    table: str
    cql: str
    """Creates the table."""
    source: str
    """Folder of the source's files, relative to the demo's."""
    select: tuple[str, ...]
    """What is computed from the source, as SQL."""
    columns: tuple[str, ...]
    """What is compared with the source: all but keys that the query makes up."""

    @property
    def checkpoint(self) -> str:
        """Folder of the checkpoint, relative to the demo's."""
        return f"checkpoints/{self.table}"


FLIGHTS = Query(
    name="all flights",
    sink="wal_sink",
    table="flights_by_origin_day",
    cql=flights.TABLE,
    source="flights",
    select=flights.COLUMNS,
    columns=flights.COLUMNS,
)
TENTH = Query(
    name="every tenth, by uuid()",
    sink="wal_sink",
    table="tenth_flights",
    cql=_TENTH_TABLE.format("tenth_flights"),
    source="tenth",
    select=("uuid() AS key", *_TENTH),
    columns=_TENTH,
)
CONTROL = Query(
    name="every tenth, by uuid()",
    sink="foreachBatch",
    table="tenth_flights_foreach_batch",
    cql=_TENTH_TABLE.format("tenth_flights_foreach_batch"),
    source="tenth",
    select=("uuid() AS key", *_TENTH),
    columns=_TENTH,
)
"""The control: a key that is made up anew whenever a row is computed turns the rows of an attempt that
was never committed into ghosts. (By a key from the data they would be overwritten, right or wrong.)"""

QUERIES = (FLIGHTS, TENTH, CONTROL)


def write_sources(folder: Path, wanted: int | None) -> dict[str, pa.Table]:
    """Write the source files below `folder`; return the rows of each source.

    :param wanted: how many flights; all if None.
    """
    rows = flights.read().slice(0, wanted)
    sources = {FLIGHTS.source: rows, TENTH.source: flights.tenth(rows)}
    for name, table in sources.items():
        flights.write_files(folder / name, table)
    return sources


def in_source(source: pa.Table, query: Query) -> Iterator[tuple[Any, ...]]:
    """Yield the rows that have to be in the query's table."""
    for batch in source.select(query.columns).to_batches():
        columns = [batch.column(name).to_pylist() for name in query.columns]
        yield from (tuple(map(_comparable, row)) for row in zip(*columns, strict=True))


def in_table(node: EmbeddedCassandra, query: Query) -> Iterator[tuple[Any, ...]]:
    """Yield the rows that are in the query's table, a page at a time."""
    select = f"SELECT {', '.join(query.columns)} FROM {KEYSPACE}.{query.table}"  # noqa: S608
    for row in node.session().execute(select, timeout=60):
        yield tuple(map(_comparable, row))


def _comparable(value: Any) -> Any:
    """Reduce what Arrow and the driver return for one value to the same thing."""
    if hasattr(value, "tzinfo"):
        return value.replace(tzinfo=None)
    if type(value).__module__ in {"datetime", "cassandra.util"}:
        return str(value)
    return value
