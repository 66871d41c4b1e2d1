"""Deletes under SIGKILL, with real Spark, Cassandra and PostgreSQL: tables are the source, to the row."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path

import pytest

from changes import write_topic
from tests.spark.test_examples import Customers, expected_customers
from wal_sink import status
from wal_sink.testing.crash import PAUSES, Driver, Pause, Point, pauses
from wal_sink.testing.servers.cassandra import Node
from wal_sink.testing.servers.postgresql import Server

pytestmark = [
    pytest.mark.test_all,
    pytest.mark.spark,
    pytest.mark.cassandra,
    pytest.mark.slow_first,
    pytest.mark.timeout(900),
]

ROOT = Path(__file__).parents[2]
COLUMNS = "name text, city text, points int"
DEATHS: list[dict[str, tuple[Point, int]]] = [
    {"cassandra": ("commit returned", 1), "postgresql": ("flushing", 1)},
    {"cassandra": ("flushing", 1), "postgresql": ("finishing", 1)},
]
"""Where each query stands when both are killed: the point, and the epoch."""


def _stand_still(where: list[Pause], folder: Path) -> bool:
    there = all(Path(pause.marker).exists() for pause in where)
    return there and all(status(str(folder / name)).flushed >= 0 for name in DEATHS[0])


def test_both_tables_are_the_source_after_kills(
    cassandra: Node, keyspace: str, postgresql: Server, schema: str, tmp_path: Path
) -> None:
    """What was deleted stays deleted, what came again is there, and nothing of an older row in it.

    One test for both, since a start of Spark costs more than all that it does.
    """
    cassandra.execute(
        f"CREATE TABLE {keyspace}.customers (customer_id bigint PRIMARY KEY, {COLUMNS})"
    )
    postgresql.execute(
        f"CREATE TABLE {schema}.customers (customer_id bigint PRIMARY KEY, {COLUMNS})"
    )
    topic = tmp_path / "topic"
    config = {
        "topic": write_topic(topic),
        "folder": str(tmp_path),
        "host": cassandra.host,
        "port": str(cassandra.port),
        "keyspace": keyspace,
        "uri": postgresql.uri,
        "table": f"{schema}.customers",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    tables = {"cassandra": "customers", "postgresql": f"{schema}.customers"}

    def application(number: int, *where: Pause) -> Driver:
        path = os.pathsep.join([str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")])
        return Driver(
            ["-m", "tests.spark.changes_app", str(tmp_path / "config.json")],
            tmp_path / f"output-{number}",
            {PAUSES: pauses(*where), "PYTHONPATH": path},
            folder=ROOT,
        )

    for number, deaths in enumerate(DEATHS):
        where = [
            Pause(
                point=point,
                table=tables[name],
                epoch=epoch,
                marker=str(tmp_path / f"{name}-{number}"),
            )
            for name, (point, epoch) in deaths.items()
        ]
        with application(number, *where) as driver:
            driver.reach(functools.partial(_stand_still, where, tmp_path))
            driver.kill()
    with application(len(DEATHS)) as last:
        last.finish()

    expected = expected_customers(topic)
    read = "SELECT customer_id, name, city, points FROM {}.customers"
    for rows in (cassandra.execute(read.format(keyspace)), postgresql.execute(read.format(schema))):
        table: Customers = {key: (name, city, points) for key, name, city, points in rows}
        assert table == expected
    for name in tables:
        found = status(str(tmp_path / name))
        assert found.flushed == found.checkpointed >= 2
