"""The queries of the demo, their sources, and the rows that their tables must have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow as pa

from wal_sink.demo import flights

_TENTH = ("origin", "day", "scheduled", "carrier", "flight")


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A streaming query from a folder of files to a table."""

    name: str
    """Its name in the output of the demo."""
    sink: Literal["wal_sink", "foreachBatch"]
    table: str
    source: str
    """Folder of the source, below the folder of the demo."""
    select: tuple[str, ...]
    """The columns of the table, as SQL expressions over the source."""
    columns: tuple[str, ...]
    """The columns that have to be equal in table and source. A column with `uuid()` is none of them."""

    @property
    def checkpoint(self) -> str:
        """Folder of the checkpoint, below the folder of the demo."""
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
"""The control. Each time Spark computes a row, `uuid()` makes a new key. So if an attempt is killed, the next
one does not overwrite its rows, and the table has extra rows."""

QUERIES = (FLIGHTS, TENTH, CONTROL)

FAILOVER_FLIGHTS = msgspec.structs.replace(
    TENTH, name="flights by uuid()", table="flights", source="flights"
)
FAILOVER_CONTROL = msgspec.structs.replace(
    CONTROL, name=FAILOVER_FLIGHTS.name, source=FAILOVER_FLIGHTS.source
)
FAILOVER_QUERIES = (FAILOVER_FLIGHTS, FAILOVER_CONTROL)
STOP_FILE = "stop"
"""Name of a file in the folder of the demo, at which the queries of the failover end."""

_MANY_ROWS, _MANY_EPOCHS, _FEW_EPOCHS = 10_000, 24, 6
"""A source with many rows has many epochs. Otherwise there are few, since each epoch takes about a second."""


def epochs(rows: int) -> int:
    """Return the number of epochs for a source with this number of rows."""
    return _MANY_EPOCHS if rows >= _MANY_ROWS else _FEW_EPOCHS


def write_sources(folder: Path, number: int) -> dict[str, pa.Table]:
    """Write the files of the sources below a folder; return the rows of each source.

    :param number: how many flights to write.
    """
    rows = flights.read().slice(0, number)
    sources = {FLIGHTS.source: rows, TENTH.source: rows.take(list(range(0, rows.num_rows, 10)))}
    for name, table in sources.items():
        flights.write_files(folder / name, table, epochs(rows.num_rows))
    return sources


def source_rows(source: pa.Table, query: Query) -> Iterator[tuple[Any, ...]]:
    """Yield the rows that the query's table must have, to be compared with `table_rows`."""
    for batch in source.select(query.columns).to_batches():
        columns = [batch.column(name).to_pylist() for name in query.columns]
        yield from (tuple(map(_comparable, row)) for row in zip(*columns, strict=True))


def table_rows(rows: Iterable[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table, to be compared with `source_rows`.

    :param rows: the rows from the driver of a store.
    """
    for row in rows:
        yield tuple(map(_comparable, row))


def _comparable(value: Any) -> Any:
    """Return the same value for equal dates and times of Arrow and a driver."""
    if hasattr(value, "tzinfo"):
        return value.replace(tzinfo=None)
    if type(value).__module__ in {"datetime", "cassandra.util"}:
        return str(value)
    return value
