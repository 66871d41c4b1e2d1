"""The text of a start about the order of two rows with one key."""

from __future__ import annotations

from typing import Any

from wal_sink.targets.cassandra import CassandraOptions, CassandraTarget
from wal_sink.targets.postgresql import PostgresqlOptions, PostgresqlTarget

WHERE: dict[str, Any] = {"keyspace": "shop", "table": "orders", "contact_points": "127.0.0.1"}


def test_cassandra_start_describes_the_order_of_rows() -> None:
    """By default the position decides, with `cassandra.timestampColumn` the event time."""
    text = CassandraTarget(CassandraOptions(**WHERE)).description["newest"]
    assert "after a shuffle it may be either (see cassandra.timestampColumn)" in text
    timed = CassandraTarget(CassandraOptions(**WHERE, timestamp_column="changed_at"))
    assert "later changed_at" in timed.description["newest"]


def test_postgresql_start_describes_order_for_upserts_only() -> None:
    options: dict[str, Any] = {"table": "orders", "uri": "postgresql://localhost/shop"}
    assert "newest" not in PostgresqlTarget(PostgresqlOptions(**options)).description
    replacing = PostgresqlTarget(PostgresqlOptions(**options, mode="upsert"))
    assert "after a shuffle it may be either" in replacing.description["newest"]
