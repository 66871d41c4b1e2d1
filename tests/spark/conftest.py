"""A source of files, a checkpoint, a table, and a query from the one to the other, for tests with Spark."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.spark.gate import Gate
from tests.spark.tables import Table, stream, writer
from wal_sink.demo.cassandra import Node

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


class Shop:
    """The parts of a query: a session, a source of files, a checkpoint and a table."""

    def __init__(self, spark: SparkSession, table: Table, folder: Path) -> None:
        self.spark, self.table, self.folder = spark, table, folder
        self.checkpoint = str(folder / "checkpoint")
        self._source = folder / "source"
        self._source.mkdir()

    def add_files(self, count: int = 1, rows: int = ROWS_PER_FILE) -> None:
        """Add files to the source; their ids continue those of the files before."""
        first = len(list(self._source.iterdir()))
        for number in range(first, first + count):
            write_file(self._source, number, rows)

    @property
    def rows(self) -> DataFrame:
        """The stream of the source."""
        return stream(self.spark, str(self._source))

    def writer(self, rows: DataFrame | None = None, /, **more: object) -> DataStreamWriter:
        """Return the writer of a query; by default of the stream of the source.

        :param more: options, beside those that name checkpoint and table.
        """
        return writer(self.rows if rows is None else rows, self.table, self.checkpoint, **more)

    def start(self, rows: DataFrame | None = None, /, **more: object) -> StreamingQuery:
        """Start a query that ends when the source is read; see `writer`."""
        return self.writer(rows, **more).trigger(availableNow=True).start()

    def run(self, rows: DataFrame | None = None, /, **more: object) -> StreamingQuery:
        """Run a query to its end; see `writer`."""
        query = self.start(rows, **more)
        query.awaitTermination()
        return query


@pytest.fixture
def shop(spark: SparkSession, table: Table, tmp_path: Path) -> Shop:
    """Return a query's parts, with an empty source and an empty table."""
    return Shop(spark, table, tmp_path)


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
