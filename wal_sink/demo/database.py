"""What the demo needs of a database: a private server with its tables, and what the application writes by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from wal_sink.demo.queries import Query


class LedgerRow(NamedTuple):
    """What the ledger row of a query says."""

    flushed: int
    begun: str
    """The window that is begun, as JSON; empty: none."""


class Database(ABC):
    """A private server that lives as long as one demo, seen from the demo's own process."""

    target: ClassVar[str]
    """Its name for `--target`, and for option `target`."""

    @classmethod
    @abstractmethod
    def start(cls, folder: Path, say: Callable[[str], None]) -> AbstractContextManager[Self]:
        """Start one, with a table for each query; it ends with the block.

        :param say: called with which server it is.
        :raises WalSinkError: there is none to be had.
        """

    title: str
    """Which server it is."""

    @property
    @abstractmethod
    def address(self) -> str:
        """Where its server listens: for the `Client` of the application."""

    @abstractmethod
    def count(self, table: str) -> int:
        """Count the rows that a reader sees."""

    @abstractmethod
    def rows(self, query: Query) -> Iterator[Sequence[Any]]:
        """Yield the rows of the query's table: those of `columns`, as the driver returns them."""

    @abstractmethod
    def ledger(self, query_id: str) -> LedgerRow | None:
        """Read the ledger row of a query; None when there is none."""


class Client(ABC):
    """How the application writes into a database. It pickles, to travel to tasks."""

    def __init__(self, address: str) -> None:
        self.address = address

    @abstractmethod
    def options(self, table: str) -> Mapping[str, str]:
        """Return the sink's options, with a target that can stand still to be killed."""

    @abstractmethod
    def insert(self, table: str, rows: Sequence[Sequence[Any]], half: Callable[[], None]) -> None:
        """Write rows as people do it today, by the plain driver: the control.

        :param rows: key, origin, day, scheduled, carrier and flight; at least one.
        :param half: is called when half of the rows are sent.
        """
