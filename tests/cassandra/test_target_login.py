"""A cluster with authentication and permissions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.policies import RoundRobinPolicy

from tests.cassandra.login import SETTINGS
from wal_sink.errors import OptionError, SchemaMismatch
from wal_sink.model.ledger import Owner
from wal_sink.options import parse
from wal_sink.targets.base import Slice
from wal_sink.targets.cassandra import CassandraOptions, CassandraTarget
from wal_sink.targets.cassandra.names import TableName
from wal_sink.targets.cassandra.schema.ledger_table import create_ledger
from wal_sink.testing.cassandra.embedded import EmbeddedCassandra

pytestmark = pytest.mark.cassandra

SCHEMA = pa.schema([("id", pa.int32())])


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedCassandra]:
    """A node that wants a login and checks permissions."""
    with EmbeddedCassandra(settings=SETTINGS) as node:
        yield node


@pytest.fixture(scope="module")
def admin(node: EmbeddedCassandra) -> Iterator[Any]:
    """A session of the superuser, with the role `flusher` made."""
    session = _superuser(node)
    session.execute(
        "CREATE KEYSPACE ks WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
    )
    session.execute("CREATE TABLE ks.t (id int PRIMARY KEY)")
    session.execute("CREATE ROLE flusher WITH LOGIN = true AND PASSWORD = 'hunter2'")
    yield session
    session.cluster.shutdown()


def _superuser(node: EmbeddedCassandra) -> Any:
    """The node makes the role some time after it answers."""
    profile = ExecutionProfile(load_balancing_policy=RoundRobinPolicy(), request_timeout=30)
    for _ in range(100):
        cluster = Cluster(
            [node.host],
            node.port,
            auth_provider=PlainTextAuthProvider("cassandra", "cassandra"),
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            protocol_version=5,
        )
        try:
            return cluster.connect()
        except NoHostAvailable:
            cluster.shutdown()
            time.sleep(0.3)
    raise AssertionError("The superuser did not appear.")


def target(node: EmbeddedCassandra, username: str = "", password: str = "") -> CassandraTarget:
    raw = {
        "keyspace": "ks",
        "table": "t",
        "cassandra.contactPoints": node.host,
        "cassandra.port": str(node.port),
        "cassandra.username": username,
        "cassandra.password": password,
    }
    return CassandraTarget(parse(raw, CassandraOptions))


@pytest.mark.usefixtures("admin")
def test_no_login(node: EmbeddedCassandra) -> None:
    """The error names the options."""
    with pytest.raises(OptionError, match="wants a login") as refused:
        target(node).plan(SCHEMA, "k")
    assert "cassandra.username and cassandra.password" in refused.value.remedy


@pytest.mark.parametrize(("user", "word"), [("flusher", "wrong"), ("stranger", "hunter2")])
@pytest.mark.usefixtures("admin")
def test_a_wrong_login(node: EmbeddedCassandra, user: str, word: str) -> None:
    """The error names option and role, and not the password."""
    with pytest.raises(OptionError, match=rf"cassandra\.username {user}") as refused:
        target(node, user, word).connect(Owner("q", "l", "c"))
    assert "cassandra.password" in refused.value.remedy
    assert word not in str(refused.value)


def test_permissions(node: EmbeddedCassandra, admin: Any) -> None:
    """Those that docs/cassandra.md lists are enough; without CREATE the error prints the ledger's DDL."""
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
    with flusher.connect(Owner("q", "l", "c")) as session:
        session.create(-1)
        mark = session.read_ledger()
        assert mark is not None
        assert mark.flushed == -1
        batch = flusher.check(pa.record_batch({"id": pa.array([1], pa.int32())}), plan)
        session.write(plan, Slice(0, batch, 1))
        session.drain()
        admin.execute("REVOKE MODIFY ON TABLE ks.t FROM flusher")
        session.write(plan, Slice(0, batch, 1))
        with pytest.raises(Exception, match="no MODIFY permission") as raised:
            session.drain()
        assert flusher.classify(raised.value) == "fatal"
    assert [row.id for row in admin.execute("SELECT * FROM ks.t")] == [1]
