"""The checks of a start on a real server: consistency levels, the ledger's id, metadata of tables."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.support.cassandra import options_of
from wal_sink.demo.cassandra import Node
from wal_sink.errors import OptionError, SchemaMismatch, TargetUnavailable
from wal_sink.model.ledger import Outcome
from wal_sink.targets.base import RowSlice
from wal_sink.targets.cassandra import CassandraOptions, CassandraTarget, ledger, server
from wal_sink.targets.cassandra.driver.connection import connect
from wal_sink.targets.cassandra.ledger import ledger_id
from wal_sink.targets.cassandra.row_plan import TableName
from wal_sink.targets.cassandra.table import read_table
from wal_sink.testing.contracts.ledger import create, first_row
from wal_sink.units import now_us

pytestmark = pytest.mark.cassandra

SCHEMA = pa.schema([("id", pa.int32())])


@pytest.fixture(scope="module")
def shared(cassandra: Node) -> Iterator[str]:
    """One keyspace for all tests here, with a strategy for which each level is defined, and a table."""
    name = f"test_{secrets.token_hex(8)}"
    (local,) = cassandra.execute("SELECT data_center FROM system.local")
    cassandra.execute(
        f"CREATE KEYSPACE {name} WITH replication = "
        f"{{'class': 'NetworkTopologyStrategy', '{local.data_center}': 1}}"
    )
    cassandra.execute(f"CREATE TABLE {name}.t (id int PRIMARY KEY)")
    yield name
    cassandra.session().execute(
        f"DROP KEYSPACE {name}", timeout=None
    )  # slow if the keyspace has many tables


def options(node: Node, keyspace: str, **options: str) -> CassandraOptions:
    return options_of(node, keyspace, **{f"cassandra.{name}": v for name, v in options.items()})


@pytest.mark.parametrize(
    "level",
    ["ONE", "TWO", "THREE", "QUORUM", "ALL", "LOCAL_ONE", "LOCAL_QUORUM", "EACH_QUORUM"],
)
def test_start_accepts_exactly_the_levels_that_keyspace_reaches(
    cassandra: Node, shared: str, level: str
) -> None:
    """The tables of a node itself have one replica, and are read at any level.

    If nodes are lost after the start, a level that they cannot reach is an outage.
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


def test_columns_of_a_table_are_read_from_one_node(
    cassandra: Node, shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another node may lag, and lack the columns."""
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
    name = options(cassandra, shared, ledgerTable="Led").ledger
    CassandraTarget(options(cassandra, shared, ledgerTable="Led")).plan(SCHEMA, "k")
    assert id_of(cassandra, *name) == ledger_id(name)


def test_ledger_created_again_is_empty(cassandra: Node, shared: str) -> None:
    """The new table has the same id."""
    target = CassandraTarget(options(cassandra, shared, ledgerTable="again"))
    for _ in range(2):
        target.plan(SCHEMA, "k")
        with target.connect("q") as session:
            assert session.read() is None
            create(session, "q", 7)
            assert session.read() is not None
        cassandra.execute(f"DROP TABLE {shared}.again")


def test_server_refusing_table_ids_gets_a_ledger(
    cassandra: Node,
    shared: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Managed services choose the ids of tables."""
    monkeypatch.setattr(ledger, "_PROPERTY", "no_such_property")
    CassandraTarget(options(cassandra, shared, ledgerTable="led2")).plan(SCHEMA, "k")
    assert "is created without one" in caplog.text
    assert "no_such_property" in caplog.text
    name = options(cassandra, shared, ledgerTable="led2").ledger
    assert id_of(cassandra, *name) != ledger_id(name)


@pytest.mark.parametrize(("ahead_s", "refused"), [(30, False), (90, True), (-3_600, False)])
def test_driver_whose_clock_is_ahead_is_refused(
    cassandra: Node, shared: str, monkeypatch: pytest.MonkeyPatch, ahead_s: int, refused: bool
) -> None:
    """Rows of this driver would hide later rows of other clients."""
    monkeypatch.setattr(server, "now_us", lambda: now_us() + ahead_s * 1_000_000)
    target = CassandraTarget(options(cassandra, shared))
    for start in (target.dry_plan, target.plan):
        if not refused:
            start(SCHEMA, "k")
            continue
        with pytest.raises(OptionError, match=r"\d+ s ahead of the clock of Cassandra at"):
            start(SCHEMA, "k")
