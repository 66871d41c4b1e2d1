"""The stores of the demo: databases and tables to which its queries write; and the interface of a store.

A demo has one or more stores, for example with `--targets cassandra,iceberg`. The queries with wal_sink write
to all stores. The control, a query with `foreachBatch`, writes only to the first store, and only the flush to
this store pauses to be killed. The store of a target is in a module with the target's name.
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

from wal_sink.builtin_targets import BUILTIN
from wal_sink.demo.queries import CONTROL, Query


class Store(ABC):
    """A store of the demo. The demo's Spark application makes its own instance, and pickles it for tasks.

    :param address: the address of the store as text.
    :param server: the server in the process of the demo; None in the application, or if there is no server.
    """

    target: ClassVar[str]
    """Name for `--target` and for option `target`."""

    def __init__(self, address: str, server: Any = None) -> None:
        self.address = address
        self.server = server

    @property
    def title(self) -> str:
        """The name and version of the server; not known in the application."""
        return str(self.server.title)

    @classmethod
    @abstractmethod
    def start(cls, folder: Path, notify: Callable[[str], None]) -> AbstractContextManager[Self]:
        """Start a new store, which ends at the end of the `with` block.

        :param folder: the folder of the demo, for the files of the store.
        :param notify: called with a line of text if a server starts.
        :raises WalSinkError: the server cannot be started.
        """

    def create(self) -> None:  # noqa: B027 - only some stores need it
        """Make the tables that must exist before the queries start."""

    @abstractmethod
    def options(self, table: str) -> Mapping[str, str]:
        """Return the options of the sink for a table, without the option `target`."""

    def converted(self, rows: DataFrame) -> DataFrame:
        """Return the rows with the columns that the store accepts."""
        return rows

    @abstractmethod
    def write(self, batch: DataFrame, table: str) -> None:
        """Write a micro-batch of the control as most foreachBatch functions do."""

    @abstractmethod
    def count(self, table: str) -> int:
        """Count the rows that a reader sees; return 0 if the table does not exist yet."""

    @abstractmethod
    def rows(self, query: Query) -> Iterable[Sequence[Any]]:
        """Return the rows of the query's table, with the columns `query.columns`."""


class FileStore(Store):
    """A store without a server: a folder with all tables."""

    title: ClassVar[str]
    """The name of the store, such as "Delta Lake"."""

    @classmethod
    @contextmanager
    def start(cls, folder: Path, notify: Callable[[str], None]) -> Iterator[Self]:  # noqa: ARG003 - no server
        """Make the folder."""
        place = folder / cls.target
        place.mkdir()
        yield cls(str(place))


class RowStore(Store):
    """A store to which each task of the control sends its rows by a driver."""

    def write(self, batch: DataFrame, table: str) -> None:
        """Send the rows of each partition in its task."""
        batch.foreachPartition(partial(self.insert, table))

    @abstractmethod
    def insert(self, table: str, rows: Iterable[Row]) -> None:
        """Send the rows of a partition."""


STORES = tuple(name for name in BUILTIN if find_spec(f"wal_sink.demo.{name}"))
"""The names of the targets with a store. The store of target `x` is the class `wal_sink.demo.x.X`."""

ALONE = ("kafka",)
"""Stores whose rows have other columns, so that they cannot share a log with another store."""


def store_type(target: str) -> type[Store]:
    """Import and return the class of a store. The import needs the client of the target."""
    module = import_module(f"wal_sink.demo.{target}")
    loaded: type[Store] = getattr(module, target.capitalize())
    return loaded


class Stores(NamedTuple):
    """The stores of one demo."""

    all: Sequence[Store]

    @classmethod
    @contextmanager
    def start(
        cls, targets: Sequence[str], folder: Path, notify: Callable[[str], None]
    ) -> Iterator[Self]:
        """Start a store for each target. The stores end at the end of the `with` block.

        :param targets: names in `STORES`.
        """
        with ExitStack() as stack:
            starts = [store_type(target).start(folder, notify) for target in targets]
            stores = cls([stack.enter_context(start) for start in starts])
            for store in stores.all:
                store.create()
            yield stores

    @classmethod
    def at(cls, addresses: str) -> Self:
        """Return the stores in the application.

        :param addresses: the value of the property `addresses` in the process of the demo.
        """
        by_target = msgspec.json.decode(addresses, type=dict[str, str])
        return cls([store_type(target)(address) for target, address in by_target.items()])

    @property
    def first(self) -> Store:
        """The store to which the control also writes."""
        return self.all[0]

    @property
    def targets(self) -> str:
        """The names of the stores, separated by commas."""
        return ",".join(store.target for store in self.all)

    @property
    def title(self) -> str:
        """The titles of the stores."""
        return " and ".join(store.title for store in self.all)

    @property
    def addresses(self) -> str:
        """The address of each store by its target, as JSON for `at`."""
        return msgspec.json.encode({store.target: store.address for store in self.all}).decode()

    def options(self, table: str) -> Mapping[str, str]:
        """Return the options of the sink for a table, with the prefix of each target if there are several.

        The target of the first store is its class of `wal_sink.demo` that pauses, such as `PausingDelta`.
        """
        kind = type(self.first)
        pausing = f"{kind.__module__}:Pausing{kind.__name__}"
        if len(self.all) == 1:
            return {"target": pausing, **self.first.options(table)}
        merged = {"targets": ",".join(target_name(store) for store in self.all)}
        for store in self.all:
            own = {"target": pausing if store is self.first else store.target}
            own |= store.options(table)
            merged |= {f"{target_name(store)}.{option}": value for option, value in own.items()}
        return merged

    def count(self, table: str) -> int:
        """Return the number of rows of a table; if several stores have the table, the smallest number."""
        stores = self.all[:1] if table == CONTROL.table else self.all
        return min(store.count(table) for store in stores)


def target_name(store: Store) -> str:
    """Return the name of a store in the option `targets`."""
    return f"in_{store.target}"
