"""The rows that all contenders write: each row is computed from its id, so that any row can be checked."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from tests.benchmarks.sizes import PARTITIONS
from wal_sink.demo.maven import cache_folder

Name = Literal["grouped", "scattered"]

_VERSION = 1
"""The version of the files in the cache; increase it if their content changes."""
FILES_PER_EPOCH = 2  # one for each of Spark's two slots
_CHUNK = 250_000
_BEGIN_MS = 1_767_225_600_000  # 2026-01-01
_WORDS = 4_096
_ROW_GROUP = 50_000

COLUMNS = {"device": "text", "id": "bigint", "at": "timestamp", "amount": "bigint", "note": "text"}
"""The CQL types by column; a row has about 150 bytes."""

_SPARK = {"text": "string", "bigint": "bigint", "timestamp": "timestamp"}


class Totals(NamedTuple):
    """The number of rows in a table, and the sums of two columns."""

    rows: int
    ids: int
    amounts: int


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A number of rows of one shape."""

    shape: Name
    rows: int
    partitions: int = PARTITIONS
    """The number of partitions of the table; scattered rows have one each."""

    @property
    def schema(self) -> str:
        """The columns, as a schema of Spark."""
        return ", ".join(f"`{name}` {_SPARK[kind]}" for name, kind in COLUMNS.items())

    def table(self, ids: np.ndarray[Any, Any]) -> pa.Table:
        """Return the rows with these ids (int64)."""
        random = _mixed(ids)
        columns: dict[str, pa.Array] = {
            "device": pc.binary_join_element_wise(
                "device-", pc.cast(pa.array(self._devices(ids)), pa.string()), ""
            ),
            "id": pa.array(ids),
            "at": pa.array(ids + _BEGIN_MS).cast(pa.timestamp("ms", "UTC")).cast(_AT),
            "amount": pa.array((random >> np.uint64(24)).astype(np.int64)),
            "note": _notes(random),
        }
        return pa.table(columns)

    def totals(self) -> Totals:
        """Return the totals of the complete table."""
        amounts = 0
        for first in range(0, self.rows, _CHUNK):
            ids = np.arange(first, min(first + _CHUNK, self.rows))
            amounts += int((_mixed(ids) >> np.uint64(24)).astype(np.int64).sum())
        return Totals(self.rows, self.rows * (self.rows - 1) // 2, amounts)

    def files(self, epochs: int) -> Path:
        """Return a folder of Parquet files, two for each micro-batch; it is kept in the user's cache.

        A rename makes the folder visible when it is complete.
        """
        name = f"{self.shape}-{self.rows}-{self.partitions}-{epochs}-v{_VERSION}"
        folder = cache_folder() / "benchmarks" / name
        if not folder.is_dir():
            hidden = folder.with_name(f".{name}-{os.getpid()}")
            hidden.mkdir(parents=True)
            count = epochs * FILES_PER_EPOCH
            bounds = [self.rows * number // count for number in range(count + 1)]
            for number, (first, last) in enumerate(itertools.pairwise(bounds)):
                path = hidden / f"{number:04}.parquet"
                self._write(path, first, last)
                os.utime(path, (number, number))  # the file source reads the oldest first
            hidden.rename(folder)
        return folder

    def _write(self, path: Path, first: int, last: int) -> None:
        with pyarrow.parquet.ParquetWriter(path, self.table(np.arange(0)).schema) as writer:
            for begin in range(first, last, _ROW_GROUP):
                writer.write_table(self.table(np.arange(begin, min(begin + _ROW_GROUP, last))))

    def _devices(self, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if self.shape == "scattered":
            return ids
        return ids * self.partitions // max(self.rows, self.partitions)


_AT = pa.timestamp("us", "UTC")


def _mixed(ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Hash integers to uint64 by the finalizer of SplitMix64."""
    with np.errstate(over="ignore"):
        z = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _notes(random: np.ndarray[Any, Any]) -> pa.Array:
    """Return texts of 80 to 120 letters, from a fixed stock, so that the files stay small."""
    return _STOCK.take(pa.array((random % np.uint64(_WORDS)).astype(np.int32)))


def _stock() -> pa.Array:
    words = _mixed(np.arange(_WORDS * 8)).reshape(_WORDS, 8)
    texts = ("".join(f"{int(word):016x}" for word in row) for row in words)
    return pa.array([text[: 80 + number % 41] for number, text in enumerate(texts)])


_STOCK = _stock()
