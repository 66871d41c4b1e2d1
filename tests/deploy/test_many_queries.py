"""Fifty queries in one driver, whose resources stay constant."""

from __future__ import annotations

import json
from pathlib import Path

import pyspark
import pytest

from tests.deploy.many_app import EPOCHS, MEASURED
from tests.deploy.proxy import Proxy
from tests.spark.application import Application
from tests.spark.conftest import write_source
from tests.support.deploy_table import Counted, Row
from wal_sink.demo.cassandra import Node

pytestmark = [
    pytest.mark.test_all,
    pytest.mark.spark,
    pytest.mark.cassandra,
    pytest.mark.timeout(900),
]

ROWS = 5
QUERIES = 50


def test_many_queries_in_one_driver_leak_nothing(
    cassandra: Node, keyspace: str, tmp_path: Path, counted: Counted
) -> None:
    """Threads, sockets and memory stay as after the first epoch.

    Each epoch updates the ledger twice at most.
    """
    cassandra.execute(f"CREATE TABLE {keyspace}.t (key uuid PRIMARY KEY, query int, id bigint)")
    proxy = Proxy("127.0.1.9", cassandra.port, cassandra.host)
    proxy.start()
    config = {
        "folder": str(tmp_path),
        "queries": QUERIES,
        "source": write_source(tmp_path / "source", 1, ROWS),
        "options": {
            "cassandra.contactPoints": proxy.host,
            "cassandra.port": str(cassandra.port),
            "keyspace": keyspace,
            "table": "t",
        },
    }
    try:
        Application(tmp_path, "tests.deploy.many_app", config, patience_s=600).finish()
    finally:
        proxy.stop()
    lines = (tmp_path / MEASURED).read_text().splitlines()
    first, *_, last, after = map(json.loads, lines)
    assert last["threads"] <= first["threads"] + 5 <= 7 * QUERIES
    assert last["sockets"] <= first["sockets"] + 5 <= 4 * QUERIES + 20
    assert last["megabytes"] <= first["megabytes"] * 1.2
    assert QUERIES <= proxy.ledger_updates <= 2 * QUERIES * EPOCHS + 10
    assert after["threads"] <= 2, "threads outlive their queries"
    ((rows,),) = cassandra.execute(f"SELECT count(*) FROM {keyspace}.t")
    faults = f"none; {last}, {proxy.ledger_updates} ledger updates"
    name = f"{QUERIES} queries in one driver"
    counted(Row(name, pyspark.__version__, faults, QUERIES * EPOCHS * ROWS, rows))
