"""Readers that look at a target all the time: no row comes twice, and none that was there goes or changes."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from typing import ClassVar

import psycopg
from cassandra import DriverException, OperationTimedOut, RequestExecutionException
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.policies import ConstantReconnectionPolicy, DCAwareRoundRobinPolicy, TokenAwarePolicy
from cassandra.query import ConsistencyLevel
from deltalake import DeltaTable

from wal_sink.demo.background import Background

BUCKET = 500
"""How many numbers share a bucket, which is what a reader asks for."""
_EVERY_S = 0.4

Rows = Sequence[tuple[int, str]]
"""Number and key of each."""


class Store(ABC):
    """One target, as its users read it."""

    unanswered: ClassVar[tuple[type[BaseException], ...]] = ()
    """What is raised while it is down."""

    @abstractmethod
    def rows(self, bucket: int) -> Rows:
        """Read one bucket."""

    def close(self) -> None:  # noqa: B027 - not each has something open
        """Close what is open."""


class CassandraStore(Store):
    """The table at LOCAL_QUORUM, by a client of its own.

    :param table: with its keyspace.
    """

    unanswered = (
        *(DriverException, NoHostAvailable, OperationTimedOut),
        RequestExecutionException,
    )

    def __init__(self, hosts: Sequence[str], port: int, table: str) -> None:
        profile = ExecutionProfile(
            TokenAwarePolicy(DCAwareRoundRobinPolicy()),
            consistency_level=ConsistencyLevel.LOCAL_QUORUM,
            request_timeout=10,
        )
        self._cluster = Cluster(
            hosts,
            port,
            protocol_version=5,
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            reconnection_policy=ConstantReconnectionPolicy(1, None),
        )
        self._session = self._cluster.connect()
        self._query = self._session.prepare(f"SELECT number, key FROM {table} WHERE bucket = ?")

    def rows(self, bucket: int) -> Rows:
        return [(row.number, str(row.key)) for row in self._session.execute(self._query, [bucket])]

    def close(self) -> None:
        self._cluster.shutdown()


class PostgresqlStore(Store):
    """The table, by a connection that is made again where it was lost."""

    unanswered = (psycopg.OperationalError,)

    def __init__(self, uri: str, table: str) -> None:
        self._uri, self._table = uri, table
        self._connection: psycopg.Connection | None = None

    def rows(self, bucket: int) -> Rows:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._uri, autocommit=True, connect_timeout=5)
        query = f"SELECT number, key::text FROM {self._table} WHERE bucket = %s"
        return self._connection.execute(query.encode(), [bucket]).fetchall()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class DeltaStore(Store):
    """The newest version of the table."""

    def __init__(self, path: str) -> None:
        self._path = path

    def rows(self, bucket: int) -> Rows:
        table = DeltaTable(self._path).to_pyarrow_table(
            columns=["number", "key"], filters=[("bucket", "=", bucket)]
        )
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


class Reader(Background):
    """Looks at buckets where rows come, and at older ones in turn, until the `with` block is left."""

    def __init__(self, name: str, store: Store) -> None:
        super().__init__(f"soak-reader-{name}")
        self._store = store
        self._newest = 0
        self._seen: dict[int, dict[int, str]] = defaultdict(dict)
        self.looks = self.unanswered = self.rows_read = 0
        self.wrong: set[str] = set()
        """What no reader may see."""

    def __exit__(self, *_: object) -> None:
        self.end()
        self._store.close()

    @property
    def visible(self) -> int:
        """How many rows were seen."""
        return sum(map(len, list(self._seen.values())))

    def work(self) -> None:
        """Look, again and again; a store that is down is not a failure."""
        for older in itertools.count():
            if self._left.wait(_EVERY_S):
                return
            self.look(older % (self._newest + 1))
            self.look(self._newest)
            while self.look(self._newest + 1):
                self._newest += 1

    def look(self, bucket: int) -> int:
        """Look at a bucket, and compare it with the look before; return how many rows it has."""
        try:
            rows = self._store.rows(bucket)
        except self._store.unanswered:
            self.unanswered += 1
            return 0
        self.looks += 1
        self.rows_read += len(rows)
        result = dict(rows)
        if len(result) < len(rows):
            self.wrong.add(f"{self.name}: {len(rows) - len(result)} rows twice in {bucket}")
        earlier = self._seen[bucket]
        gone = [number for number, key in earlier.items() if result.get(number) != key]
        if gone:
            self.wrong.add(f"{self.name}: rows gone or changed in {bucket}: {gone[:5]}")
        self._seen[bucket] = result
        return len(rows)

    def read_all(self, last: int) -> list[tuple[int, str]]:
        """Read the whole table; nothing while the store is down.

        :param last: the highest number that may be there.
        """
        try:
            return [row for bucket in range(last // BUCKET + 2) for row in self._store.rows(bucket)]
        except self._store.unanswered:
            return []
