"""A source of files, a checkpoint, a table, and a gate before the table, for tests with Spark."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.spark.gate import Gate
from tests.spark.tables import Table
from wal_sink.demo.servers.cassandra import Node

ROWS_PER_FILE = 400


def write_source(folder: Path, files: int, rows: int = ROWS_PER_FILE) -> str:
    """Write Parquet files of ascending ids; each becomes one micro-batch."""
    folder.mkdir(parents=True)
    for number in range(files):
        write_file(folder, number, rows)
    return str(folder)


def write_file(folder: Path, number: int, rows: int = ROWS_PER_FILE) -> None:
    """Write one file of a source."""
    ids = range(number * rows, (number + 1) * rows)
    table = pa.table({"id": pa.array(ids, pa.int64()), "text": [f"row {i}" for i in ids]})
    path = folder / f"{number:04}.parquet"
    pyarrow.parquet.write_table(table, path)
    os.utime(path, (number, number))  # the file source reads the oldest file first


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """Return the location of a checkpoint that does not exist yet."""
    return str(tmp_path / f"checkpoint-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def table(cassandra: Node, keyspace: str) -> Table:
    """Return an empty table."""
    return Table(cassandra, keyspace)


@pytest.fixture
def gate(keyspace: str) -> Iterator[Gate]:
    """Return the open gate of the keyspace, see `GatedTarget`."""
    gate = Gate(keyspace)
    yield gate
    gate.open()
    gate.remove()
