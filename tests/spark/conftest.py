"""One Spark session and one Cassandra for the whole run; a keyspace for each test."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

ROWS_PER_FILE = 400


def write_source(folder: Path, files: int, rows: int = ROWS_PER_FILE) -> str:
    """Write `files` Parquet files of ascending ids; each becomes one micro-batch."""
    folder.mkdir(parents=True)
    for number in range(files):
        ids = range(number * rows, (number + 1) * rows)
        table = pa.table({"id": pa.array(ids, pa.int64()), "text": [f"row {i}" for i in ids]})
        path = folder / f"{number:04}.parquet"
        pyarrow.parquet.write_table(table, path)
        os.utime(path, (number, number))  # the file source reads the oldest first
    return str(folder)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """Return the location of a checkpoint that does not exist yet."""
    return str(tmp_path / f"checkpoint-{uuid.uuid4().hex[:8]}")
