"""The queries of the demo, their tables, and what has to be in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow as pa

from wal_sink.demo import flights

_TENTH = ("origin", "day", "scheduled", "carrier", "flight")


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """One streaming query from a folder of files to a table."""

    name: str
    """What people see."""
    sink: Literal["wal_sink", "foreachBatch"]
    table: str
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
    source="flights",
    select=flights.COLUMNS,
    columns=flights.COLUMNS,
)
TENTH = Query(
    name="every tenth, by uuid()",
    sink="wal_sink",
    table="tenth_flights",
    source="tenth",
    select=("uuid() AS key", *_TENTH),
    columns=_TENTH,
)
CONTROL = Query(
    name="every tenth, by uuid()",
    sink="foreachBatch",
    table="tenth_flights_foreach_batch",
    source="tenth",
    select=("uuid() AS key", *_TENTH),
    columns=_TENTH,
)
"""The control: a key that is made up again whenever a row is computed turns the rows of an attempt that
was never committed into ghosts. (By a key from the data they would be overwritten, right or wrong.) Where no
table has a key, they are doubles."""

QUERIES = (FLIGHTS, TENTH, CONTROL)

KEPT = msgspec.structs.replace(TENTH, name="flights by uuid()", table="flights", source="flights")
LOST = msgspec.structs.replace(CONTROL, name=KEPT.name, source=KEPT.source)
OF_FAILOVER = (KEPT, LOST)
"""They write the same flights, by the sink and by `foreachBatch`."""
OVER = "over"
"""A file in the demo's folder that ends the queries of the failover."""

_MANY = 10_000
"""Flights that are worth as many epochs as the year has files."""
_FEW = 6
"""Epochs of fewer flights: an epoch takes a second, however few rows it has."""


def epochs(rows: int) -> int:
    """Return in how many micro-batches `rows` flights are streamed."""
    return flights.FILES if rows >= _MANY else _FEW


def write_sources(folder: Path, wanted: int) -> dict[str, pa.Table]:
    """Write the source files below `folder`; return the rows of each source.

    :param wanted: how many flights.
    """
    rows = flights.read().slice(0, wanted)
    sources = {FLIGHTS.source: rows, TENTH.source: flights.tenth(rows)}
    for name, table in sources.items():
        flights.write_files(folder / name, table, epochs(rows.num_rows))
    return sources


def in_source(source: pa.Table, query: Query) -> Iterator[tuple[Any, ...]]:
    """Yield the rows that have to be in the query's table."""
    for batch in source.select(query.columns).to_batches():
        columns = [batch.column(name).to_pylist() for name in query.columns]
        yield from (tuple(map(_comparable, row)) for row in zip(*columns, strict=True))


def in_table(rows: Iterable[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table, as the driver returns them, so that they can be compared."""
    for row in rows:
        yield tuple(map(_comparable, row))


def _comparable(value: Any) -> Any:
    """Reduce what Arrow and a driver return for one value to the same thing."""
    if hasattr(value, "tzinfo"):
        return value.replace(tzinfo=None)
    if type(value).__module__ in {"datetime", "cassandra.util"}:
        return str(value)
    return value
