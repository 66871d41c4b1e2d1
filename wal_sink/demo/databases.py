"""The databases of one demo, one or several: `wal-sink demo --targets cassandra,postgresql`.

One query fills all of them. The flush stands still at the first to be killed, and the first has the control.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from wal_sink.demo.cassandra import Cassandra, CassandraClient
from wal_sink.demo.database import Client, Database, LedgerRow
from wal_sink.demo.postgresql import Postgresql, PostgresqlClient
from wal_sink.demo.queries import CONTROL

DATABASES: Mapping[str, type[Database]] = {kind.target: kind for kind in (Cassandra, Postgresql)}
CLIENTS: Mapping[str, type[Client]] = {"cassandra": CassandraClient, "postgresql": PostgresqlClient}


class Databases(NamedTuple):
    """The servers of one demo, seen from its own process."""

    all: Sequence[Database]

    @classmethod
    @contextmanager
    def start(
        cls, targets: Sequence[str], folder: Path, say: Callable[[str], None]
    ) -> Iterator[Self]:
        """Start a server for each target; they end with the block.

        :param targets: names in `DATABASES`.
        """
        with ExitStack() as stack:
            yield cls(
                [stack.enter_context(DATABASES[target].start(folder, say)) for target in targets]
            )

    @property
    def targets(self) -> str:
        """Their names, as the report has them."""
        return ",".join(each.target for each in self.all)

    @property
    def title(self) -> str:
        """Which servers they are."""
        return " and ".join(each.title for each in self.all)

    @property
    def addresses(self) -> str:
        """The address of each, by its target, as JSON: for the application's `Clients`."""
        return msgspec.json.encode({each.target: each.address for each in self.all}).decode()

    def count(self, table: str) -> int:
        """Count the rows of a table that a reader sees, in the database that has the fewest of them."""
        having_it = self.all[:1] if table == CONTROL.table else self.all
        return min(each.count(table) for each in having_it)

    def ledger(self, query_id: str) -> LedgerRow | None:
        """Read the ledger row of a query in the first; None when there is none."""
        first = self.all[0]
        whose = query_id if len(self.all) == 1 else f"{query_id}/{name_of(first.target)}"
        return first.ledger(whose)


class Clients:
    """How the application writes into the databases. It pickles, to travel to tasks.

    :param addresses: what `Databases.addresses` is.
    """

    def __init__(self, addresses: str) -> None:
        where = msgspec.json.decode(addresses, type=dict[str, str])
        self._all = {target: CLIENTS[target](address) for target, address in where.items()}
        self.first = next(iter(self._all.values()))

    def options(self, table: str) -> Mapping[str, str]:
        """Return the sink's options: of one target plainly, of several under their names."""
        if len(self._all) == 1:
            return self.first.options(table)
        merged = {"targets": ",".join(map(name_of, self._all))}
        for target, client in self._all.items():
            own = dict(client.options(table))
            if client is not self.first:
                own["target"] = target  # in place of the one that can stand still
            merged |= {f"{name_of(target)}.{option}": value for option, value in own.items()}
        return merged


def name_of(target: str) -> str:
    """Return what a query calls one of several targets."""
    return f"in_{target}"
