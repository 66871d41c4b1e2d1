"""The queries of the demo, their sources, and the rows that their tables must have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow as pa

from wal_sink.demo.flights import FLIGHTS_COLUMNS, read_flights, write_files

_TENTH = ("origin", "day", "scheduled", "carrier", "flight")
"""The columns of every tenth flight, beside the key."""


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A streaming query from a folder of files to a table."""

    name: str
    """The name of the query in the output of the demo."""
    sink: Literal["wal_sink", "foreachBatch"]
    """The sink that writes the rows to the table."""
    table: str
    source: str
    """The folder of the source, relative to the folder of the demo."""
    select: tuple[str, ...]
    """The columns of the table, as SQL expressions over the source."""
    columns: tuple[str, ...]
    """The columns that are compared with the source: all columns except columns with `uuid()`."""

    @property
    def checkpoint(self) -> str:
        """The folder of the checkpoint, relative to the folder of the demo."""
        return f"checkpoints/{self.table}"


FLIGHTS = Query(
    name="all flights",
    sink="wal_sink",
    table="flights_by_origin_day",
    source="flights",
    select=FLIGHTS_COLUMNS,
    columns=FLIGHTS_COLUMNS,
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
"""The control. Each time that Spark computes a row, `uuid()` makes a new key. So the rows of a killed attempt
are not overwritten by the next attempt, and stay in the table as extra rows."""

QUERIES = (FLIGHTS, TENTH, CONTROL)

FAILOVER_FLIGHTS = msgspec.structs.replace(
    TENTH, name="flights by uuid()", table="flights", source="flights"
)
FAILOVER_CONTROL = msgspec.structs.replace(
    CONTROL, name=FAILOVER_FLIGHTS.name, source=FAILOVER_FLIGHTS.source
)
FAILOVER_QUERIES = (FAILOVER_FLIGHTS, FAILOVER_CONTROL)

_MANY_ROWS, _MANY_EPOCHS, _FEW_EPOCHS = 10_000, 24, 6
"""A source with fewer than `_MANY_ROWS` rows has few epochs, since an epoch takes about a second."""


def epochs(rows: int) -> int:
    """Return the number of epochs of a source with `rows` rows."""
    return _MANY_EPOCHS if rows >= _MANY_ROWS else _FEW_EPOCHS


def write_sources(folder: Path, number: int) -> dict[str, pa.Table]:
    """Write the files of the sources below a folder; return the rows of each source.

    :param number: the number of flights to write.
    """
    rows = read_flights().slice(0, number)
    sources = {FLIGHTS.source: rows, TENTH.source: rows.take(list(range(0, rows.num_rows, 10)))}
    for name, table in sources.items():
        write_files(folder / name, table, epochs(rows.num_rows))
    return sources


def source_rows(source: pa.Table, query: Query) -> Iterator[tuple[Any, ...]]:
    """Yield the rows that the query's table must have, to be compared with `table_rows`."""
    for batch in source.select(query.columns).to_batches():
        columns = [batch.column(name).to_pylist() for name in query.columns]
        yield from table_rows(zip(*columns, strict=True))


def table_rows(rows: Iterable[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
    """Yield rows of a store's driver, or of Arrow, with values that compare equal."""
    for row in rows:
        yield tuple(map(_comparable, row))


def _comparable(value: Any) -> Any:
    """Return a value that is equal whichever driver has read it.

    Times become naive, since Cassandra's driver returns UTC without a zone. Dates become texts, since
    Cassandra's driver has a class of its own, which must not be imported, and JSON has no dates.
    """
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    if isinstance(value, date) or type(value).__module__ == "cassandra.util":
        return str(value)
    return value
