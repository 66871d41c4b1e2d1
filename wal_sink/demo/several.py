"""Several databases at once, filled by one query each: `wal-sink demo --targets cassandra,postgresql`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec

from wal_sink.demo.cassandra import Cassandra, CassandraClient
from wal_sink.demo.database import Client, Database, LedgerRow
from wal_sink.demo.postgresql import Postgresql, PostgresqlClient
from wal_sink.demo.queries import CONTROL, Query

DATABASES: Mapping[str, type[Database]] = {kind.target: kind for kind in (Cassandra, Postgresql)}
CLIENTS: Mapping[str, type[Client]] = {"cassandra": CassandraClient, "postgresql": PostgresqlClient}


class Several(Database):
    """The first of them is the one that the flush stands still at to be killed, and has the control."""

    def __init__(self, parts: Sequence[Database]) -> None:
        self._parts = tuple(parts)
        self._first = parts[0]
        self.title = " and ".join(part.title for part in parts)

    @classmethod
    @contextmanager
    def open(
        cls, targets: Sequence[str], folder: Path, say: Callable[[str], None]
    ) -> Iterator[Database]:
        """Start a server for each target; a single one is itself.

        :param targets: names in `DATABASES`.
        """
        with ExitStack() as stack:
            parts = [
                stack.enter_context(DATABASES[target].start(folder, say)) for target in targets
            ]
            yield parts[0] if len(parts) == 1 else cls(parts)

    @classmethod
    @contextmanager
    def start(cls, folder: Path, say: Callable[[str], None]) -> Iterator[Self]:
        """Start all there are."""
        with cls.open([*DATABASES], folder, say) as started:
            assert isinstance(started, cls)
            yield started

    @property
    def target(self) -> str:  # type: ignore[override] # of an object, not of the class
        """Their names."""
        return ",".join(part.target for part in self._parts)

    @property
    def address(self) -> str:
        """Return the address of each."""
        return msgspec.json.encode({part.target: part.address for part in self._parts}).decode()

    @property
    def parts(self) -> Sequence[Database]:
        """Return them."""
        return self._parts

    def count(self, table: str) -> int:
        """Count the rows of the one that is behind."""
        if table == CONTROL.table:
            return self._first.count(table)
        return min(part.count(table) for part in self._parts)

    def rows(self, query: Query) -> Iterator[Sequence[Any]]:
        """Yield those of the first."""
        return self._first.rows(query)

    def ledger(self, query_id: str) -> LedgerRow | None:
        """Read that of the first."""
        return self._first.ledger(f"{query_id}/{name_of(self._first.target)}")


class SeveralClient(Client):
    """Writes to all of them; the control writes to the first."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        addresses = msgspec.json.decode(address, type=dict[str, str])
        self._clients = {target: CLIENTS[target](where) for target, where in addresses.items()}
        self._first = next(iter(self._clients))

    def options(self, table: str) -> Mapping[str, str]:
        """Give each target its own; the first can stand still."""
        merged = {"targets": ",".join(map(name_of, self._clients))}
        for target, client in self._clients.items():
            own = dict(client.options(table))
            if target != self._first:
                own["target"] = target
            merged |= {f"{name_of(target)}.{option}": value for option, value in own.items()}
        return merged

    def insert(self, table: str, rows: Sequence[Sequence[Any]], half: Callable[[], None]) -> None:
        """Write to the first."""
        self._clients[self._first].insert(table, rows, half)


def client_of(target: str, address: str) -> Client:
    """Return what the application writes by.

    :param target: a name, or several with commas.
    """
    return CLIENTS[target](address) if target in CLIENTS else SeveralClient(address)


def name_of(target: str) -> str:
    """Return what a query calls one of several targets."""
    return f"in_{target}"
