"""How a start meets a real server: levels of consistency, the ledger's id, what the server says of itself."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.support.cassandra import options_of
from wal_sink.demo.servers.cassandra import Node
from wal_sink.errors import SchemaMismatch, TargetUnavailable
from wal_sink.model.ledger import Outcome
from wal_sink.targets.base import RowSlice
from wal_sink.targets.cassandra import CassandraOptions, CassandraTarget, ledger
from wal_sink.targets.cassandra.driver.connection import connect
from wal_sink.targets.cassandra.ledger import ledger_id
from wal_sink.targets.cassandra.row_plan import TableName
from wal_sink.targets.cassandra.table import read_table
from wal_sink.testing.contracts.ledger import create, first_row

pytestmark = pytest.mark.cassandra

SCHEMA = pa.schema([("id", pa.int32())])


@pytest.fixture(scope="module")
def shared(cassandra: Node) -> Iterator[str]:
    """One keyspace for all tests here, of a strategy that every level fits; with a table."""
    name = f"test_{secrets.token_hex(8)}"
    (local,) = cassandra.execute("SELECT data_center FROM system.local")
    cassandra.execute(
        f"CREATE KEYSPACE {name} WITH replication = "
        f"{{'class': 'NetworkTopologyStrategy', '{local.data_center}': 1}}"
    )
    cassandra.execute(f"CREATE TABLE {name}.t (id int PRIMARY KEY)")
    yield name
    cassandra.session().execute(f"DROP KEYSPACE {name}", timeout=None)  # of many tables


def options(node: Node, keyspace: str, **options: str) -> CassandraOptions:
    return options_of(node, keyspace, **{f"cassandra.{name}": v for name, v in options.items()})


@pytest.mark.parametrize(
    "level",
    ["ONE", "TWO", "THREE", "QUORUM", "ALL", "LOCAL_ONE", "LOCAL_QUORUM", "EACH_QUORUM"],
)
def test_start_at_every_level(cassandra: Node, shared: str, level: str) -> None:
    """Also at those that ask for more replicas than a node's own tables have: one.

    A level that the keyspace never reaches is refused. If nodes go later, that is an outage, and the error
    says so.
    """
    target = CassandraTarget(options(cassandra, shared, consistencyLevel=level))
    plan = CassandraTarget(options(cassandra, shared)).plan(SCHEMA, "k")
    if level in ("TWO", "THREE"):  # the keyspace has one replica
        with pytest.raises(SchemaMismatch, match=f"{level} needs"):
            target.plan(SCHEMA, "k")
    else:
        assert target.plan(SCHEMA, "k") == plan
    rows = target.check(pa.record_batch([[7]], SCHEMA), plan)
    with target.connect(level) as session:
        assert session.read() is None
        row = first_row(level)
        if level not in ("TWO", "THREE"):
            assert session.finish(None, row) is Outcome.APPLIED
            assert session.read() == row
            return
        assert session.finish(None, row) is Outcome.UNKNOWN
        session.write(plan, RowSlice(0, rows, 1))
        with pytest.raises(TargetUnavailable, match=f"Cannot achieve consistency level {level}"):
            session.drain()


def id_of(node: Node, keyspace: str, table: str) -> object:
    (row,) = node.execute(
        "SELECT id FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s",
        [keyspace, table],
    )
    return row.id


def test_table_is_read_from_one_node(
    cassandra: Node, shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the one that answers first: another one may lag behind, and have the table without its columns."""
    asked: list[Any] = []
    with connect(options(cassandra, shared)) as connection:
        session = connection.session
        execute, (node,) = session.execute, session.get_pool_state()

        def noted(*args: Any, host: Any = None) -> Any:
            asked.append(host)
            return execute(*args, host=host)

        monkeypatch.setattr(session, "execute", noted)
        read_table(session, TableName(shared, "t"))
    assert asked[0] is None
    assert {*asked[1:]} == {node}


def test_ledger_table_id_follows_from_its_name(cassandra: Node, shared: str) -> None:
    """Chosen by its name: starts at the same time on several nodes make one table."""
    name = options(cassandra, shared, ledgerTable="Led").ledger
    CassandraTarget(options(cassandra, shared, ledgerTable="Led")).plan(SCHEMA, "k")
    assert id_of(cassandra, *name) == ledger_id(name)


def test_ledger_that_is_made_again_is_empty(cassandra: Node, shared: str) -> None:
    """The table has the id of the one that was dropped, and nothing of its rows."""
    target = CassandraTarget(options(cassandra, shared, ledgerTable="again"))
    for _ in range(2):
        target.plan(SCHEMA, "k")
        with target.connect("q") as session:
            assert session.read() is None
            create(session, "q", 7)
            assert session.read() is not None
        cassandra.execute(f"DROP TABLE {shared}.again")


def test_server_that_takes_no_id(
    cassandra: Node,
    shared: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Managed services make their own: the table is made all the same, and the risk is said."""
    monkeypatch.setattr(ledger, "_PROPERTY", "no_such_property")
    CassandraTarget(options(cassandra, shared, ledgerTable="led2")).plan(SCHEMA, "k")
    assert "is created without a chosen id" in caplog.text
    assert "no_such_property" in caplog.text
    name = options(cassandra, shared, ledgerTable="led2").ledger
    assert id_of(cassandra, *name) != ledger_id(name)


def test_server_that_cannot_keep_a_ledger(cassandra: Node, shared: str) -> None:
    """The planner refuses it before anything is created.

    The node is made known as Amazon Keyspaces by a keyspace that only that service has.
    """
    cassandra.create_keyspace("system_schema_mcs")
    try:
        target = CassandraTarget(options(cassandra, shared, ledgerTable="never"))
        with pytest.raises(SchemaMismatch, match="is Amazon Keyspaces, which is not supported"):
            target.plan(SCHEMA, "k")
    finally:
        cassandra.execute("DROP KEYSPACE system_schema_mcs")
