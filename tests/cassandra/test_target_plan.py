"""The plan of a query on a real node, and errors of the connection."""

from __future__ import annotations

import logging
import re
import socket
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.support.cassandra import target_of
from wal_sink.demo.cassandra import Node
from wal_sink.errors import OptionError, SchemaMismatch, TargetUnavailable
from wal_sink.targets.cassandra import CassandraTarget
from wal_sink.testing.contracts.ledger import create

pytestmark = pytest.mark.cassandra

SCHEMA = pa.schema(
    [
        ("id", pa.int32()),
        ("At", pa.timestamp("us", "Europe/Berlin")),
        ("name", pa.string()),
        ("price", pa.decimal128(10, 2)),
    ]
)


def target(node: Node, keyspace: str, **options: str) -> CassandraTarget:
    return target_of(node, keyspace, **{f"cassandra.{name}": v for name, v in options.items()})


@pytest.fixture
def table(cassandra: Node, keyspace: str) -> str:
    """Create a table that SCHEMA fits; return its keyspace."""
    cassandra.execute(
        f'CREATE TABLE {keyspace}.t (id bigint, "At" timestamp, owner text STATIC, name text, '
        'price decimal, tags set<text>, PRIMARY KEY (id, "At"))'
    )
    return keyspace


@pytest.fixture
def no_thread_is_left(table: str) -> Iterator[None]:
    """Check that all threads end except the driver's event loop.

    The pool of the fixture's session may grow: it receives an event about the ledger's table.
    """
    earlier = set(threading.enumerate())
    pools = {_pool(thread) for thread in earlier}
    yield
    remaining = [thread for thread in set(threading.enumerate()) - earlier if thread.is_alive()]
    remaining = [thread for thread in remaining if _pool(thread) not in pools]
    assert [thread.name for thread in remaining if thread.name != "event_loop"] == []


def _pool(thread: threading.Thread) -> str:
    """Return the name of a thread's pool, or of the thread if it has none."""
    return re.sub(r"^(ThreadPoolExecutor-\d+)_\d+$", r"\1", thread.name)


def refusal(source: CassandraTarget, schema: pa.Schema = SCHEMA) -> str:
    with pytest.raises(SchemaMismatch) as refused:
        source.plan(schema, "k")
    assert refused.value.remedy
    return str(refused.value)


@pytest.mark.usefixtures("no_thread_is_left")
def test_plan_has_the_columns_of_the_dataframe(cassandra: Node, table: str) -> None:
    """Time zones do not matter. Columns that the DataFrame lacks are not in the plan."""
    plan = target(cassandra, table, nulls="write").plan(SCHEMA, "key 1")
    assert (plan.key, plan.target, plan.table) == ("key 1", "cassandra", f'"{table}"."t"')
    place = {"keyspace": table, "table": "t", "nulls": "write", "types": {}}
    rows = {"update": False, "clustering": [], "timestamp_column": ""}
    ttl = {"ttl_s": None, "ttl_column": "", "expires_at_column": ""}
    assert plan.details == place | rows | ttl
    assert [(c.name, c.source, c.type, c.role) for c in plan.columns] == [
        ("id", "int32", "bigint", "partition"),
        ("At", "timestamp[us, tz=UTC]", "timestamp", "clustering"),
        ("name", "string", "text", "regular"),
        ("price", "decimal128(10, 2)", "decimal", "regular"),
    ]


def test_ledger_table_may_be_in_another_keyspace(cassandra: Node, table: str) -> None:
    """The keyspace must exist, and capitals count."""
    text = refusal(target(cassandra, table, ledgerTable="nowhere.led"))
    assert "Keyspace nowhere of cassandra.ledgerTable does not exist" in text
    assert 'CREATE KEYSPACE "nowhere"' in text
    other = table.replace("test_", "Test_")
    cassandra.create_keyspace(other)
    try:
        elsewhere = target(cassandra, table, ledgerTable=f"{other}.Led")
        elsewhere.plan(SCHEMA, "k")
        with elsewhere.connect("q") as session:
            create(session, "q")
        assert len(cassandra.execute(f'SELECT * FROM "{other}"."Led"')) == 1
    finally:
        cassandra.execute(f'DROP KEYSPACE "{other}"')


@pytest.mark.usefixtures("no_thread_is_left")
def test_error_of_unknown_datacenter_lists_the_known_ones(cassandra: Node, table: str) -> None:
    with pytest.raises(OptionError, match=r"(?s)is dc9, .*Use one of datacenter1"):
        target(cassandra, table, localDatacenter="dc9").plan(SCHEMA, "k")
    target(cassandra, table, localDatacenter="datacenter1").plan(SCHEMA, "k")


@pytest.mark.usefixtures("no_thread_is_left")
def test_error_of_unreachable_server_names_contact_points_and_cause(
    cassandra: Node, keyspace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has no traceback of the driver, which each try would add."""
    with socket.socket() as bound:  # bound, not listening: connections are refused
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        with pytest.raises(
            TargetUnavailable, match=rf"127\.0\.0\.1, port {port}: .*refused"
        ) as caught:
            target(cassandra, keyspace, port=str(port)).plan(SCHEMA, "k")
    assert "cassandra.ssl.enabled" in caught.value.remedy
    assert [record.name for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.usefixtures("no_thread_is_left")
def test_silent_server_is_an_outage(cassandra: Node, keyspace: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = str(silent.getsockname()[1])
        quick = target(cassandra, keyspace, port=port, requestTimeout="0.5")
        with pytest.raises(TargetUnavailable, match=rf"port {port}"):
            quick.connect("q")


@pytest.mark.usefixtures("no_thread_is_left")
def test_unresolved_contact_point_is_an_outage(cassandra: Node, keyspace: str) -> None:
    """The name may resolve later."""
    with pytest.raises(TargetUnavailable, match=r"nowhere\.invalid"):
        target(cassandra, keyspace, contactPoints="nowhere.invalid").plan(SCHEMA, "k")
