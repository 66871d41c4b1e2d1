"""The two queries of the failover's demo, which write the same flights, and their source in three parts."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa

from wal_sink.demo import flights
from wal_sink.demo.queries import CONTROL, TENTH

OVER = "over"
"""A file in the demo's folder that ends the application."""

KEPT = msgspec.structs.replace(TENTH, name="flights by uuid()", table="flights", source="flights")
LOST = msgspec.structs.replace(CONTROL, name=KEPT.name, source=KEPT.source)
QUERIES = (KEPT, LOST)

PARTS = ("replicated", "not replicated", "after the failover")
FILES = 3
"""Of each part; each is one micro-batch."""


class Source:
    """The files of both queries, which come in parts.

    :param folder: of the demo.
    :param rows: how many flights.
    """

    def __init__(self, folder: Path, rows: int) -> None:
        self.table: pa.Table = flights.read().slice(0, rows)
        number = FILES * len(PARTS)
        self._staged = sorted(
            Path(flights.write_files(folder / "staged", self.table, number)).glob("*.parquet")
        )
        self._rows_per_file = flights.rows_per_file(rows, number)
        self._folder = folder / KEPT.source
        self._folder.mkdir()
        self.files = 0
        """How many the queries have been given."""

    @property
    def rows(self) -> int:
        """Rows in the files that the queries have been given."""
        return min(self.files * self._rows_per_file, int(self.table.num_rows))

    def give(self) -> None:
        """Give the queries the files of the next part."""
        for file in self._staged[self.files : self.files + FILES]:
            file.rename(self._folder / file.name)
        self.files += FILES
