"""Deletes under SIGKILL, with real Spark, Cassandra and PostgreSQL: tables are the source, to the row."""

from __future__ import annotations

from pathlib import Path

import pytest

from changes import write_topic
from tests.spark.driver import Mortal
from tests.spark.test_examples import Customers, expected_customers
from wal_sink import status
from wal_sink.testing.pauses import Point
from wal_sink.testing.servers.cassandra import Node
from wal_sink.testing.servers.postgresql import Server

pytestmark = [
    pytest.mark.test_all,
    pytest.mark.spark,
    pytest.mark.cassandra,
    pytest.mark.slow_first,
    pytest.mark.timeout(900),
]

COLUMNS = "name text, city text, points int"
DEATHS: list[dict[str, Point]] = [
    {"cassandra": "commit returned", "postgresql": "flushing"},
    {"cassandra": "flushing", "postgresql": "finishing"},
]
"""Where each query stands in epoch 1 when both are killed."""


def test_both_tables_are_the_source_after_kills(
    cassandra: Node, keyspace: str, postgresql: Server, schema: str, tmp_path: Path
) -> None:
    """What was deleted stays deleted, what came again is there, and nothing of an older row in it.

    One test for both, since a start of Spark costs more than all that it does.
    """
    cassandra.execute(
        f"CREATE TABLE {keyspace}.customers (customer_id bigint PRIMARY KEY, {COLUMNS})"
    )
    mirror = f"{schema}.mirror"  # by another name: a pause at `customers` is one at any schema's
    postgresql.execute(f"CREATE TABLE {mirror} (customer_id bigint PRIMARY KEY, {COLUMNS})")
    topic = tmp_path / "topic"
    config = {
        "topic": write_topic(topic),
        "folder": str(tmp_path),
        "host": cassandra.host,
        "port": str(cassandra.port),
        "keyspace": keyspace,
        "uri": postgresql.uri,
        "table": mirror,
    }
    tables = {"cassandra": "customers", "postgresql": mirror}
    app = Mortal(tmp_path, "tests.spark.changes_app", config)

    def first_is_flushed() -> bool:
        return all(status(str(tmp_path / name)).flushed >= 0 for name in tables)

    for deaths in DEATHS:
        where = [app.pause(tables[name], point, 1) for name, point in deaths.items()]
        app.die(where, first_is_flushed)
    app.finish()

    expected = expected_customers(topic)
    read = "SELECT customer_id, name, city, points FROM"
    copies = (
        cassandra.execute(f"{read} {keyspace}.customers"),
        postgresql.execute(f"{read} {mirror}"),
    )
    for rows in copies:
        table: Customers = {key: (name, city, points) for key, name, city, points in rows}
        assert table == expected
    for name in tables:
        found = status(str(tmp_path / name))
        assert found.flushed == found.checkpointed >= 2
