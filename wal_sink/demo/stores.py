"""What the demo needs of a store, which ones it has, and those of one demo: `--targets cassandra,iceberg`.

One query fills all of them. The flush pauses at the first to be killed, and the first has the control.
A new store is one module with one class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import msgspec
from pyspark.sql import DataFrame, Row

from wal_sink.demo.queries import CONTROL, FLIGHTS, Query
from wal_sink.model.ledger import LedgerRow, ledger_key
from wal_sink.options import parse
from wal_sink.target_info import OWN
from wal_sink.targets.registry import target_type

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
        """Return the sink's options, with a target that can pause to be killed."""

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
        """Create the folder; each table is created with its first row."""
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


STORES = tuple(name for name in OWN if find_spec(f"wal_sink.demo.{name}"))
"""Names of targets; the store of each is the class of its name, in the module of its name."""

ALONE = ("kafka",)
"""Stores that take other columns than the rest, so that no log can be for both."""


def store_type(target: str) -> type[Store]:
    """Return the class of a store; imports the client of its target."""
    module = import_module(f"wal_sink.demo.{target}")
    store_type: type[Store] = getattr(module, target.capitalize())
    return store_type


class Stores(NamedTuple):
    """The stores of one demo."""

    all: Sequence[Store]

    @classmethod
    @contextmanager
    def start(
        cls, targets: Sequence[str], folder: Path, say: Callable[[str], None]
    ) -> Iterator[Self]:
        """Make a store for each target; they end with the block.

        :param targets: names in `STORES`.
        """
        with ExitStack() as stack:
            stores = cls([stack.enter_context(store_type(t).start(folder, say)) for t in targets])
            for store in stores.all:
                store.create()
            yield stores

    @classmethod
    def at(cls, addresses: str) -> Self:
        """Return the stores as the application has them.

        :param addresses: what `addresses` is in the demo's own process.
        """
        where = msgspec.json.decode(addresses, type=dict[str, str])
        return cls([store_type(target)(address) for target, address in where.items()])

    @property
    def first(self) -> Store:
        """The first one."""
        return self.all[0]

    @property
    def targets(self) -> str:
        """Their names, as the report has them."""
        return ",".join(store.target for store in self.all)

    @property
    def title(self) -> str:
        """Which stores they are."""
        return " and ".join(store.title for store in self.all)

    @property
    def addresses(self) -> str:
        """The address of each, by its target, as JSON: for `at`."""
        return msgspec.json.encode({store.target: store.address for store in self.all}).decode()

    def options(self, table: str) -> Mapping[str, str]:
        """Return the sink's options: of one target plainly, of several under their names."""
        if len(self.all) == 1:
            return self.first.options(table)
        merged = {"targets": ",".join(name_of(store.target) for store in self.all)}
        for store in self.all:
            own = dict(store.options(table))
            if store is not self.first:
                own["target"] = store.target  # in place of the one that can pause
            merged |= {f"{name_of(store.target)}.{option}": value for option, value in own.items()}
        return merged

    def count(self, table: str) -> int:
        """Count the rows of a table that a reader sees, in the store that has the fewest of them."""
        having_it = self.all[:1] if table == CONTROL.table else self.all
        return min(store.count(table) for store in having_it)

    def ledger(self, query_id: str) -> LedgerRow | None:
        """Read the ledger row of a query in the first store; None when there is none."""
        target = target_type(self.first.target)
        made = target(parse(self.first.options(FLIGHTS.table), target.options_type))
        name = "" if len(self.all) == 1 else name_of(self.first.target)
        with made.connect(ledger_key(query_id, name)) as session:
            return session.read()


def name_of(target: str) -> str:
    """Return what a query calls one of several targets."""
    return f"in_{target}"
