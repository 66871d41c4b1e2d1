"""What the demo needs of a store: where it is, its tables, and the control as a user would write it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from pyspark.sql import DataFrame, Row

from wal_sink.demo.queries import Query

Half = Callable[[], None]
"""Called where a kill hits the control: when half of the rows are sent; or before any, where they go in one
piece."""


class Store(ABC):
    """A store for one demo: in its own process, and in the application, whose one pickles, for its tasks.

    :param address: where it is, as text.
    :param server: a handle of the server, in the demo's own process alone; None where there is no server.
    """

    target: ClassVar[str]
    """Its name for `--target`, and for option `target`."""

    def __init__(self, address: str, server: Any = None, title: str = "") -> None:
        self.address = address
        self.server = server
        self.title = title

    @classmethod
    @abstractmethod
    def start(cls, folder: Path, say: Callable[[str], None]) -> AbstractContextManager[Self]:
        """Make one that is private to this demo; it ends with the block.

        :param folder: for its files.
        :param say: called with which server is started.
        :raises WalSinkError: there is none to be had.
        """

    def create(self) -> None:  # noqa: B027 - few stores need it
        """Make what the queries and the control do not make themselves, such as tables."""

    @abstractmethod
    def options(self, table: str) -> Mapping[str, str]:
        """Return the sink's options, with a target that can stand still to be killed."""

    def written(self, rows: DataFrame) -> DataFrame:
        """Return the rows with the columns that the store takes."""
        return rows

    @abstractmethod
    def write(self, batch: DataFrame, table: str, half: Half) -> None:
        """Write a micro-batch in foreachBatch as people do it today: the control."""

    @abstractmethod
    def count(self, table: str) -> int:
        """Count the rows that a reader sees; 0 where there is no table yet."""

    @abstractmethod
    def rows(self, query: Query) -> Iterable[Sequence[Any]]:
        """Return the rows of the query's table: those of `columns`, as the driver returns them."""


class FileStore(Store):
    """A store without a server: a folder, with all its tables."""

    name: ClassVar[str]
    """Its title."""

    @classmethod
    @contextmanager
    def start(cls, folder: Path, say: Callable[[str], None]) -> Iterator[Self]:  # noqa: ARG003 - no server
        """Make the folder: each table comes with its first row."""
        place = folder / cls.target
        place.mkdir()
        yield cls(str(place), title=cls.name)


class RowStore(Store):
    """A store to which tasks send rows by its own driver."""

    def write(self, batch: DataFrame, table: str, half: Half) -> None:
        """Let each task send its rows."""
        batch.foreachPartition(partial(self._write_partition, table=table, half=half))

    def _write_partition(self, partition: Iterator[Row], *, table: str, half: Half) -> None:
        if rows := list(partition):
            self.insert(table, rows, half)

    @abstractmethod
    def insert(self, table: str, rows: Sequence[Row], half: Half) -> None:
        """Write rows, at least one, by the plain driver."""
