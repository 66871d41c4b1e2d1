"""The stores that the demo has, and those of one demo: `wal-sink demo --targets cassandra,iceberg,sql`.

One query fills all of them. The flush stands still at the first to be killed, and the first has the control.
A new store is one class, and one line of `STORES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from wal_sink.demo.queries import CONTROL, FLIGHTS
from wal_sink.demo.store import Store
from wal_sink.model.ledger import LedgerState, Owner, ledger_key
from wal_sink.options import parse
from wal_sink.targets.registry import target_type

STORES: Mapping[str, tuple[str, Sequence[str]]] = {
    "cassandra": ("wal_sink.demo.cassandra:Cassandra", ()),
    "postgresql": ("wal_sink.demo.postgresql:Postgresql", ("psycopg", "pgpq")),
    "kafka": ("wal_sink.demo.kafka:Kafka", ("confluent_kafka",)),
    "sql": ("wal_sink.demo.sql:Sql", ("sqlalchemy",)),
    "delta": ("wal_sink.demo.delta:Delta", ("deltalake",)),
    "iceberg": ("wal_sink.demo.iceberg:Iceberg", ("pyiceberg",)),
}
"""By the target's name: the class, and the packages of the extra of that name."""

ALONE = ("kafka",)
"""Stores that take other columns than the rest, so that no log can be for both."""


def store_type(target: str) -> type[Store]:
    """Return the class of a store; imports the client of its target."""
    module, _, name = STORES[target][0].partition(":")
    found: type[Store] = getattr(import_module(module), name)
    return found


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
        return ",".join(each.target for each in self.all)

    @property
    def title(self) -> str:
        """Which stores they are."""
        return " and ".join(each.title for each in self.all)

    @property
    def addresses(self) -> str:
        """The address of each, by its target, as JSON: for `at`."""
        return msgspec.json.encode({each.target: each.address for each in self.all}).decode()

    def options(self, table: str) -> Mapping[str, str]:
        """Return the sink's options: of one target plainly, of several under their names."""
        if len(self.all) == 1:
            return self.first.options(table)
        merged = {"targets": ",".join(name_of(each.target) for each in self.all)}
        for store in self.all:
            own = dict(store.options(table))
            if store is not self.first:
                own["target"] = store.target  # in place of the one that can stand still
            merged |= {f"{name_of(store.target)}.{option}": value for option, value in own.items()}
        return merged

    def count(self, table: str) -> int:
        """Count the rows of a table that a reader sees, in the store that has the fewest of them."""
        having_it = self.all[:1] if table == CONTROL.table else self.all
        return min(each.count(table) for each in having_it)

    def ledger(self, query_id: str) -> LedgerState | None:
        """Read the ledger row of a query in the first store; None when there is none."""
        target = target_type(self.first.target)
        made = target(parse(self.first.options(FLIGHTS.table), target.options_type))
        name = "" if len(self.all) == 1 else name_of(self.first.target)
        with made.connect(Owner(ledger_key(query_id, name), "", "")) as session:
            return session.read_ledger()


def name_of(target: str) -> str:
    """Return what a query calls one of several targets."""
    return f"in_{target}"
