"""Readers that read a target all the time: no row may come twice, disappear or change."""

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

from tests.support.background import Background

BUCKET = 500
"""The number of rows in a bucket, which a reader reads by one query."""
_EVERY_S = 0.4

Rows = Sequence[tuple[int, str]]
"""The number and the key of each row."""


class Store(ABC):
    """A target, as its users read it."""

    unanswered: ClassVar[tuple[type[BaseException], ...]] = ()
    """The exceptions during an outage."""

    @abstractmethod
    def rows(self, bucket: int) -> Rows:
        """Read a bucket."""

    def close(self) -> None:  # noqa: B027 - some stores have no connection
        """Close the connection."""


class CassandraStore(Store):
    """A table at LOCAL_QUORUM.

    :param table: the name, with the keyspace.
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
    """A table, by a connection that is opened again after it was lost."""

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
    """The newest version of a table."""

    def __init__(self, path: str) -> None:
        self._path = path

    def rows(self, bucket: int) -> Rows:
        table = DeltaTable(self._path).to_pyarrow_table(
            columns=["number", "key"], filters=[("bucket", "=", bucket)]
        )
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


class Reader(Background):
    """Reads the newest buckets and, in turn, older buckets, until the `with` block is left."""

    def __init__(self, name: str, store: Store) -> None:
        super().__init__(f"soak-reader-{name}")
        self._store = store
        self._newest = 0
        self._seen: dict[int, dict[int, str]] = defaultdict(dict)
        self.reads = self.unanswered = self.rows_read = 0
        self.wrong: set[str] = set()
        """Descriptions of wrong rows."""

    def __exit__(self, *_: object) -> None:
        self.end()
        self._store.close()

    @property
    def visible(self) -> int:
        """The number of rows that were read."""
        return sum(map(len, list(self._seen.values())))

    def work(self) -> None:
        """Read buckets until the end; ignore outages."""
        for older in itertools.count():
            if self._left.wait(_EVERY_S):
                return
            self.read_bucket(older % (self._newest + 1))
            self.read_bucket(self._newest)
            while self.read_bucket(self._newest + 1):
                self._newest += 1

    def read_bucket(self, bucket: int) -> int:
        """Read a bucket, and compare it with the previous read; return its number of rows."""
        try:
            rows = self._store.rows(bucket)
        except self._store.unanswered:
            self.unanswered += 1
            return 0
        self.reads += 1
        self.rows_read += len(rows)
        keys = dict(rows)
        if len(keys) < len(rows):
            self.wrong.add(f"{self.name}: {len(rows) - len(keys)} rows twice in {bucket}")
        previous = self._seen[bucket]
        gone = [number for number, key in previous.items() if keys.get(number) != key]
        if gone:
            self.wrong.add(f"{self.name}: rows gone or changed in {bucket}: {gone[:5]}")
        self._seen[bucket] = keys
        return len(rows)

    def read_all(self, last: int) -> list[tuple[int, str]]:
        """Read the whole table; return no rows during an outage.

        :param last: the highest number that may be there.
        """
        try:
            return [row for bucket in range(last // BUCKET + 2) for row in self._store.rows(bucket)]
        except self._store.unanswered:
            return []
