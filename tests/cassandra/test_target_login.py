"""A node with authentication and permissions, and with guardrails, which do not hold for superusers."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.cassandra.login import SETTINGS, superuser
from tests.support.cassandra import target_of
from tests.support.cassandra_fixtures import QUICK_SCHEMA
from wal_sink.demo.cassandra import EmbeddedCassandra
from wal_sink.errors import OptionError, SchemaMismatch, TargetRefused
from wal_sink.targets.base import RowSlice, RowsRefused
from wal_sink.targets.cassandra import CassandraTarget
from wal_sink.targets.cassandra.ledger import create_ledger
from wal_sink.targets.cassandra.row_plan import TableName
from wal_sink.testing.contracts.ledger import create

pytestmark = pytest.mark.cassandra

SCHEMA = pa.schema([("id", pa.int32())])
NOW_US = time.time_ns() // 1_000

ONE_REPLICA = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
GUARDRAILS = {"column_value_size_fail_threshold": "16KiB"}


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedCassandra]:
    """A node with authentication, permissions and guardrails."""
    settings = {**SETTINGS, **GUARDRAILS, "dynamic_data_masking_enabled": True}
    with EmbeddedCassandra(settings=settings, java_options=QUICK_SCHEMA) as node:
        yield node


@pytest.fixture(scope="module")
def admin(node: EmbeddedCassandra) -> Iterator[Any]:
    """A session of the superuser, after it has created the role `flusher`."""
    with superuser(node) as connection:
        session = connection.session
        session.execute("CREATE KEYSPACE ks WITH replication = " + ONE_REPLICA)
        session.execute("CREATE TABLE ks.t (id int PRIMARY KEY)")
        session.execute("CREATE ROLE flusher WITH LOGIN = true AND PASSWORD = 'hunter2'")
        yield session


def target(
    node: EmbeddedCassandra,
    username: str = "",
    password: str = "",
    table: str = "t",
    keyspace: str = "ks",
    **more: str,
) -> CassandraTarget:
    login = {"cassandra.username": username, "cassandra.password": password}
    return target_of(node, keyspace, table, **login, **more)


@pytest.mark.usefixtures("admin")
def test_error_of_missing_login_names_the_options(node: EmbeddedCassandra) -> None:
    with pytest.raises(OptionError, match="requires a login") as refused:
        target(node).plan(SCHEMA, "k")
    assert "cassandra.username and cassandra.password" in refused.value.remedy


@pytest.mark.parametrize(("user", "word"), [("flusher", "wrong"), ("stranger", "hunter2")])
@pytest.mark.usefixtures("admin")
def test_error_of_wrong_login_hides_the_password(
    node: EmbeddedCassandra, user: str, word: str
) -> None:
    with pytest.raises(OptionError, match=rf"cassandra\.username {user}") as refused:
        target(node, user, word).connect("q")
    assert "cassandra.password" in refused.value.remedy
    assert word not in str(refused.value)


def test_documented_permissions_are_enough(node: EmbeddedCassandra, admin: Any) -> None:
    """Without CREATE the error has the statement that creates the ledger's table."""
    flusher = target(node, "flusher", "hunter2")
    with pytest.raises(SchemaMismatch, match="may not create it") as refused:
        flusher.plan(SCHEMA, "k")
    ddl = create_ledger(TableName("ks", "wal_sink_ledger"))
    assert ddl in refused.value.remedy
    admin.execute(ddl)
    admin.execute("GRANT MODIFY ON TABLE ks.t TO flusher")
    admin.execute("GRANT SELECT ON TABLE ks.wal_sink_ledger TO flusher")
    admin.execute("GRANT MODIFY ON TABLE ks.wal_sink_ledger TO flusher")
    plan = flusher.plan(SCHEMA, "k")
    with flusher.connect("q") as session:
        row = create(session, "q")
        assert session.read() == row
        batch = flusher.check(pa.record_batch({"id": pa.array([1], pa.int32())}), plan)
        session.write(plan, RowSlice(0, batch, NOW_US))
        session.drain()
    assert [row.id for row in admin.execute("SELECT * FROM ks.t")] == [1]


def test_start_names_each_missing_permission(node: EmbeddedCassandra, admin: Any) -> None:
    """The remedy is the statements that grant them. A masked key of the ledger needs UNMASK."""
    admin.execute("CREATE KEYSPACE rights WITH replication = " + ONE_REPLICA)
    admin.execute("CREATE TABLE rights.t (id int PRIMARY KEY)")
    ledger = TableName("rights", "wal_sink_ledger")
    admin.execute(create_ledger(ledger))
    admin.execute(f"ALTER TABLE {ledger} ALTER query_id MASKED WITH DEFAULT")
    admin.execute("CREATE ROLE \"no Rights\" WITH LOGIN = true AND PASSWORD = 'hunter2'")
    flusher = target(node, "no Rights", "hunter2", keyspace="rights")
    ledger_rights = f'ON TABLE {ledger} TO "no Rights";'
    rights = f'GRANT MODIFY ON TABLE "rights"."t" TO "no Rights"; GRANT SELECT {ledger_rights}'
    for remedy in (f"{rights} GRANT MODIFY {ledger_rights}", f"GRANT UNMASK {ledger_rights}"):
        with pytest.raises(TargetRefused) as refused:
            flusher.plan(SCHEMA, "k")
        assert refused.value.remedy == remedy
        for statement in remedy.removesuffix(";").split(";"):
            admin.execute(statement)
    flusher.plan(SCHEMA, "k")


def test_masked_columns_are_written_without_unmask(node: EmbeddedCassandra, admin: Any) -> None:
    masked = "int MASKED WITH DEFAULT"
    admin.execute(
        f"CREATE TABLE ks.masked (k {masked}, c {masked}, v {masked}, PRIMARY KEY (k, c))"
    )
    admin.execute(create_ledger(TableName("ks", "led")))
    admin.execute("CREATE ROLE writer WITH LOGIN = true AND PASSWORD = 'hunter2'")
    for right in ("MODIFY ON TABLE ks.masked", "SELECT ON TABLE ks.led", "MODIFY ON TABLE ks.led"):
        admin.execute(f"GRANT {right} TO writer")
    writer = target(
        node,
        "writer",
        "hunter2",
        "masked",
        **{"cassandra.ledgerTable": "led"},
        operationColumn="op",
    )
    columns = {name: pa.array([1, 2], pa.int32()) for name in "kcv"}
    for operations in (["upsert", "upsert"], ["upsert", "delete"]):
        batch = pa.record_batch(columns | {"op": pa.array(operations)})
        plan = writer.plan(batch.schema, "k")
        with writer.connect("q") as session:
            session.write(plan, RowSlice(0, writer.check(batch, plan), NOW_US))
            session.drain()
    assert [tuple(row) for row in admin.execute("SELECT k, c, v FROM ks.masked")] == [(1, 1, 1)]


def test_error_names_a_value_refused_by_a_guardrail(node: EmbeddedCassandra, admin: Any) -> None:
    admin.execute("CREATE TABLE ks.guarded (id int PRIMARY KEY, c text)")
    for right in ("SELECT", "MODIFY", "CREATE"):
        admin.execute(f"GRANT {right} ON KEYSPACE ks TO flusher")
    flusher = target(node, "flusher", "hunter2", "guarded")
    batch = pa.record_batch({"id": pa.array([1, 2, 3], pa.int32()), "c": ["x", "x" * 20_000, "y"]})
    plan = flusher.plan(batch.schema, "k")
    with flusher.connect("q") as session:
        session.write(plan, RowSlice(0, flusher.check(batch, plan), NOW_US))
        with pytest.raises(RowsRefused) as refused:
            session.drain()
    (row,) = refused.value.rows
    assert row.us == NOW_US + 1
    assert re.search(r"(?s)the row with id=2 of .*column_value_size", row.error.what)
