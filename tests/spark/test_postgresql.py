"""SIGKILL in windows of an epoch's life, with real Spark and a real PostgreSQL: sums are exact."""

from __future__ import annotations

import datetime as dt
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.spark.driver import Mortal
from wal_sink import status
from wal_sink.testing.crash import PAUSING_POSTGRESQL
from wal_sink.testing.pauses import Point
from wal_sink.testing.servers.postgresql import Server

pytestmark = [
    pytest.mark.test_all,
    pytest.mark.spark,
    pytest.mark.slow_first,
    pytest.mark.timeout(900),
]

SCHEMA = """
    account string, amount int, price decimal(12,2), at timestamp, day date, ratio double, flag boolean,
    code string, raw binary, tags array<string>, times array<timestamp>, attributes map<string,int>,
    place struct<x:double,y:array<int>>
"""
COLUMNS = """
    account text{key}, amount int NOT NULL, price numeric(12,2), at timestamptz, day date, ratio float8,
    flag boolean, code uuid, raw bytea, tags text[], times timestamptz[], attributes jsonb, place jsonb
"""
QUERIES = {"bookings": "append", "latest": "upsert"}
"""One adds each booking to a table without a key, the other keeps the last one of each account."""
FILES, ROWS = 4, 400
DEATHS: list[dict[str, Point]] = [
    {"bookings": "flushing", "latest": "commit returned"},
    {"bookings": "finished", "latest": "finishing"},
]
"""Where each query stands in epoch 1 when it is killed, twice: where a target makes a difference."""


def source_rows(number: int) -> list[dict[str, Any]]:
    """Make the bookings of a file; many of them are equal."""
    return [
        {
            "account": f"a{n % 7}",
            "amount": n % 3 + number,
            "price": Decimal(n % 5).scaleb(-2),
            "at": dt.datetime(2024, 1, 1 + number, 12, 0, n % 4, 123456, dt.UTC),
            "day": dt.date(2024, 1, 1 + number),
            "ratio": (n % 4) / 8,
            "flag": n % 2 == 0,
            "code": f"00000000-0000-0000-0000-{n % 3:012}",
            "raw": bytes([n % 4, 255]),
            "tags": ["x", None, 'q"'][: n % 4],
            "times": [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)] * (n % 2),
            "attributes": {"k": n % 3},
            "place": {"x": (n % 4) / 2, "y": [1, None]},
        }
        for n in range(ROWS)
    ]


TYPES = pa.schema(
    [
        ("account", pa.string()),
        ("amount", pa.int32()),
        ("price", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("ratio", pa.float64()),
        ("flag", pa.bool_()),
        ("code", pa.string()),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("times", pa.list_(pa.timestamp("us", "UTC"))),
        ("attributes", pa.map_(pa.string(), pa.int32())),
        ("place", pa.struct([("x", pa.float64()), ("y", pa.list_(pa.int32()))])),
    ]
)


@pytest.fixture
def source(tmp_path: Path) -> list[dict[str, Any]]:
    """Write the files; return all rows in their order."""
    folder = tmp_path / "source"
    folder.mkdir()
    rows = []
    for number in range(FILES):
        path = folder / f"{number}.parquet"
        new = source_rows(number)
        shown = [{**row, "attributes": list(row["attributes"].items())} for row in new]
        pyarrow.parquet.write_table(pa.Table.from_pylist(shown, TYPES), path)
        os.utime(path, (number + 1, number + 1))  # the file source reads the oldest first
        rows += new
    return rows


def as_read(row: dict[str, Any]) -> str:
    """Return a row as the driver reads it, as text: rows with lists cannot be counted otherwise."""
    return repr([str(value) if name == "code" else value for name, value in row.items()])


def table(server: Server, name: str) -> list[str]:
    columns = ", ".join(TYPES.names)
    found = server.execute(f"SELECT {columns} FROM {name}")
    rows = [dict(zip(TYPES.names, row, strict=True)) for row in found]
    utc = [{**row, "at": row["at"].astimezone(dt.UTC)} for row in rows]
    return [as_read({**row, "times": [t.astimezone(dt.UTC) for t in row["times"]]}) for row in utc]


def test_every_booking_counts_once_after_kills(
    postgresql: Server, schema: str, tmp_path: Path, source: list[dict[str, Any]]
) -> None:
    for name, mode in QUERIES.items():
        key = " PRIMARY KEY" if mode == "upsert" else ""
        postgresql.execute(f"CREATE TABLE {schema}.{name} ({COLUMNS.format(key=key)})")
    folder = str(tmp_path)
    target = {"target": PAUSING_POSTGRESQL, "postgresql.uri": postgresql.uri}
    queries = {
        name: {**target, "postgresql.mode": mode, "table": f"{schema}.{name}"}
        for name, mode in QUERIES.items()
    }
    config = {"folder": folder, "format": "parquet", "schema": SCHEMA, "pausing": True}
    app = Mortal(tmp_path, "tests.spark.killed_app", config | {"queries": queries})

    def first_is_flushed() -> bool:
        return all(status(f"{folder}/{name}").flushed >= 0 for name in QUERIES)

    for deaths in DEATHS:
        finished = deaths["bookings"] == "finished"

        def look(*, finished: bool = finished) -> None:
            """What is sent and not committed is not seen; in a window are whole epochs."""
            seen = len(table(postgresql, f"{schema}.bookings"))
            assert seen >= 2 * ROWS if finished else seen == ROWS

        where = [app.pause(f"{schema}.{name}", point, 1) for name, point in deaths.items()]
        app.die(where, first_is_flushed, look)
        assert len(table(postgresql, f"{schema}.bookings")) % ROWS == 0
    app.finish()

    expected = sorted(as_read(row) for row in source)
    assert sorted(table(postgresql, f"{schema}.bookings")) == expected
    total = postgresql.execute(f"SELECT sum(amount), sum(price) FROM {schema}.bookings")
    assert total == [(sum(row["amount"] for row in source), sum(row["price"] for row in source))]
    latest = {row["account"]: as_read(row) for row in source}
    assert sorted(table(postgresql, f"{schema}.latest")) == sorted(latest.values())
