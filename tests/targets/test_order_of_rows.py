"""What a start says of the order of two rows with one key, and only where it matters."""

from __future__ import annotations

from typing import Any

from wal_sink.targets.cassandra import CassandraOptions, CassandraTarget
from wal_sink.targets.postgresql import PostgresqlOptions, PostgresqlTarget

WHERE: dict[str, Any] = {"keyspace": "shop", "table": "orders", "contact_points": "127.0.0.1"}


def test_cassandra_says_by_what_the_newest_row_is_known() -> None:
    """By position, with the option that lets the event decide; with that option, by its column."""
    text = CassandraTarget(CassandraOptions(**WHERE)).description["newest"]
    assert "after a shuffle it may be either (see cassandra.timestampColumn)" in text
    timed = CassandraTarget(CassandraOptions(**WHERE, timestamp_column="changed_at"))
    assert "later changed_at" in timed.description["newest"]


def test_postgresql_says_it_where_rows_replace_each_other() -> None:
    """Not where each is added."""
    options: dict[str, Any] = {"table": "orders", "uri": "postgresql://localhost/shop"}
    assert "newest" not in PostgresqlTarget(PostgresqlOptions(**options)).description
    replacing = PostgresqlTarget(PostgresqlOptions(**options, mode="upsert"))
    assert "after a shuffle it may be either" in replacing.description["newest"]
