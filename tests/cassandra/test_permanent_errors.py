"""Errors that another try cannot cure, under a running flush; and TLS, on the same node.

The flush stops within seconds, reports the reason, and continues after the repair without a restart.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from cassandra import InvalidRequest
from cassandra.io.libevreactor import LibevConnection

from state_backends import open_backend
from tests.cassandra.certificates import PASSWORD, Certificates
from tests.cassandra.login import SETTINGS, superuser
from tests.protocol.engine import World
from tests.support.cassandra import options_of
from tests.support.cassandra_fixtures import QUICK_SCHEMA
from tests.support.cql_driver import OwnStatements
from tests.support.waiting import until
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.demo.cassandra import EmbeddedCassandra, Node
from wal_sink.errors import OptionError, SchemaMismatch, TargetUnavailable
from wal_sink.flush.flusher import Flusher
from wal_sink.flush.loop import FlushLoop
from wal_sink.flush.pipeline import Pipeline
from wal_sink.flush.reporter import Reporter
from wal_sink.progress.status import Status, read_status
from wal_sink.targets.base import RowSlice
from wal_sink.targets.cassandra import (
    CassandraOptions,
    CassandraTarget,
    ledger,
    table_changes,
)
from wal_sink.targets.cassandra.driver.concurrency import Concurrency
from wal_sink.targets.cassandra.driver.connection import connect
from wal_sink.targets.cassandra.driver.frames import EncodedBatch
from wal_sink.targets.cassandra.driver.internals import OverloadedErrorMessage
from wal_sink.targets.cassandra.driver.requests_in_flight import Group, RequestPipeline, SentGroup
from wal_sink.targets.cassandra.ledger import create_ledger
from wal_sink.targets.cassandra.row_plan import TableName
from wal_sink.targets.cassandra.session import CassandraSession
from wal_sink.targets.cassandra.table_changes import TableWatch
from wal_sink.telemetry import FlushMetrics
from wal_sink.testing.contracts.sessions import write

pytestmark = pytest.mark.cassandra

ELSEWHERE = "127.0.0.2"
"""An address on which the node listens, too, and which its certificate does not name."""

ROLES = ("flusher", "rotating")
"""One test changes the password of the second role."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """The certificates of the node and its client."""
    return Certificates(tmp_path_factory.mktemp("certificates"), EmbeddedCassandra.host)


@pytest.fixture(scope="module")
def node(certificates: Certificates) -> Iterator[EmbeddedCassandra]:
    """A node with authentication and permissions, and with optional TLS."""
    settings = {
        "rpc_address": "0.0.0.0",
        **SETTINGS,
        "credentials_validity": "0ms",
        **certificates.settings,
    }
    with EmbeddedCassandra(settings=settings, java_options=QUICK_SCHEMA) as node:
        yield node


@pytest.fixture(scope="module")
def admin(node: EmbeddedCassandra) -> Iterator[Any]:
    """A session of the superuser, after it has created the roles."""
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    with superuser(node) as connection:
        session = connection.session
        session.execute(f"CREATE KEYSPACE ks WITH replication = {replication}")
        for role in ROLES:
            session.execute(f"CREATE ROLE {role} WITH LOGIN = true AND PASSWORD = 'first'")
            for right in ("SELECT", "CREATE"):
                session.execute(f"GRANT {right} ON KEYSPACE ks TO {role}")
        yield session


def options(node: EmbeddedCassandra, **options: str) -> CassandraOptions:
    more = {f"cassandra.{k.replace('__', '.')}": v for k, v in options.items()}
    return options_of(node, "ks", **{"cassandra.requestTimeout": "5", **more})


class Flushing:
    """A flush loop of a query that writes to the node, as `register` creates it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.run = world.run()
        pipeline = Pipeline(
            query_id=world.query_id,
            store=world.log_backend,
            checkpoint=Checkpoint(world.checkpoint),
            target=world.target,
            target_name=world.target.name,
            several=False,
            retention=world.retention,
        )
        reporter = Reporter(world.log_backend, world.target.name, world.clock)
        self.loop = FlushLoop(Flusher(pipeline, reporter, clock_us=world.clock))

    def status(self) -> Status:
        return read_status(Checkpoint(self.world.checkpoint), self.world.log_backend)

    def batch(self, *rows: tuple[str, int]) -> int:
        epoch = self.run.batch(rows)
        self.loop.wake()
        return epoch

    def flushes(self, epoch: int) -> None:
        """Wait until the epoch is flushed and no error is reported."""
        until(lambda: self.status().flushed >= epoch and self.status().last_error is None)

    def stops(self, *words: str) -> Status:
        """Wait until the reported error has some words."""
        until(lambda: all(word in str(self.status().last_error) for word in words), 10)
        return self.status()


@pytest.fixture
def role(admin: Any, request: pytest.FixtureRequest) -> str:
    """A role with the permissions of docs/cassandra.md on a new table `t`. The role's password is `first`."""
    name: str = getattr(request, "param", ROLES[0])
    admin.execute("DROP TABLE IF EXISTS ks.t")
    admin.execute("CREATE TABLE ks.t (k text PRIMARY KEY, v bigint)")
    admin.execute(f"GRANT MODIFY ON KEYSPACE ks TO {name}")
    return name


@pytest.fixture
def flushing(
    node: EmbeddedCassandra, role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Flushing]:
    """A query of that role with its flusher, after a first flush. Only the environment has the password."""
    monkeypatch.setattr("wal_sink.flush.loop._RETRY_MOST_S", 0.5)
    monkeypatch.setenv("WAL_SINK_CASSANDRA_PASSWORD", "first")
    made = Flushing(
        World(
            open_backend(str(tmp_path / "checkpoint")),
            open_backend(str(tmp_path / "log")),
            CassandraTarget(options(node, username=role)),
        )
    )
    made.world.clock.us = time.time_ns() // 1_000
    made.loop.start()
    made.flushes(made.batch(("a", 1)))
    yield made
    made.loop.stop()
    made.loop.join(20)
    assert not made.loop.is_alive()


def table(admin: Any) -> dict[str, Any]:
    return {row.k: row.v for row in admin.execute("SELECT k, v FROM ks.t")}


def test_dropped_table_stops_the_flush_until_created_again(
    flushing: Flushing, admin: Any, caplog: pytest.LogCaptureFixture
) -> None:
    admin.execute("DROP TABLE ks.t")
    count = len(caplog.records)
    rows = [(f"b{i}", 2) for i in range(100)]  # several requests
    epoch = flushing.batch(*rows)
    stopped = flushing.stops("SchemaMismatch", "the table is gone")
    assert "Change the table back" in str(stopped.remedy)
    until(lambda: "the table is gone" in caplog.text)  # it is reported first
    until(lambda: "tries, the next in" in str(flushing.status().doing))
    later = flushing.batch(("c", 3))
    admin.execute("CREATE TABLE ks.t (k text PRIMARY KEY, v bigint)")
    flushing.flushes(later)
    assert later == epoch + 1
    assert table(admin) == {**dict(rows), "c": 3}
    assert "works again, after" in caplog.text
    assert "The target refuses" not in caplog.text
    text = [record for record in caplog.records[count:] if record.levelno >= logging.WARNING]
    assert [record.name for record in text].count("wal_sink.flush.reporter") <= 3


def test_retyped_column_stops_the_flush(flushing: Flushing, admin: Any) -> None:
    """The eight bytes of a bigint would be a valid timestamp."""
    admin.execute("DROP TABLE ks.t")
    admin.execute("CREATE TABLE ks.t (k text PRIMARY KEY, v timestamp)")
    flushing.batch(("b", 2))
    flushing.stops("SchemaMismatch", "v was bigint (regular), is timestamp (regular)")
    assert flushing.status().flushed == 0
    admin.execute("ALTER TABLE ks.t DROP v")
    flushing.stops("v was bigint (regular), is gone")
    admin.execute("DROP TABLE ks.t")
    admin.execute("CREATE TABLE ks.t (k text PRIMARY KEY, v bigint)")
    flushing.flushes(1)
    assert table(admin) == {"b": 2}


@pytest.mark.parametrize("moment", ["_schema_version", "read_table", "add"])
def test_table_altered_during_the_comparison_stops_the_flush(
    node: EmbeddedCassandra, admin: Any, role: str, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The change comes before the table is read, just after that, or before a statement is prepared."""
    monkeypatch.setattr("wal_sink.targets.cassandra.table_changes.CHECK_EVERY_S", 3_600)
    target = CassandraTarget(options(node, username=role, password="first"))
    batch = pa.record_batch({"k": ["b"], "v": pa.array([2], pa.int64())})
    plan = target.plan(batch.schema, "k")
    remaining = ["DROP TABLE ks.t", "CREATE TABLE ks.t (k text PRIMARY KEY, v timestamp)"]
    owner: Any = table_changes if moment == "read_table" else TableWatch
    step = getattr(owner, moment)

    def then_it_changes(*args: Any) -> Any:
        done = step(*args)
        while remaining:
            admin.execute(remaining.pop(0))
        return done

    monkeypatch.setattr(owner, moment, then_it_changes)
    with (
        target.connect(role) as session,
        pytest.raises(SchemaMismatch, match="v was bigint"),
    ):
        write(session, plan, RowSlice(0, target.check(batch, plan), 1))
    assert not remaining


def test_table_missing_on_one_node_is_an_outage(
    node: EmbeddedCassandra, admin: Any, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server refuses rows, and the table is unchanged when it is compared."""
    monkeypatch.setattr("wal_sink.targets.cassandra.table_changes.CHECK_EVERY_S", 3_600)
    target = CassandraTarget(options(node, username=role, password="first"))
    batch = pa.record_batch({"k": ["b"], "v": pa.array([2], pa.int64())})
    plan, check = target.plan(batch.schema, "k"), TableWatch.check
    rows = [RowSlice(0, target.check(batch, plan), us) for us in (1, 2)]
    where = "WHERE keyspace_name = 'ks' AND table_name = 't'"
    table_id = admin.execute(f"SELECT id FROM system_schema.tables {where}").one().id
    again = [f"CREATE TABLE ks.t (k text PRIMARY KEY, v bigint) WITH id = {table_id}"]

    def when_the_node_has_it(self: TableWatch) -> None:
        if again:
            admin.execute(again.pop())
        check(self)

    with target.connect(f"{role} lacks") as session:
        write(session, plan, rows[0])
        admin.execute("DROP TABLE ks.t")
        monkeypatch.setattr(TableWatch, "check", when_the_node_has_it)
        with pytest.raises(InvalidRequest, match="does not exist") as lacking:
            write(session, plan, rows[1])
        assert target.classify(lacking.value) == "retry"
        assert not again
    with target.connect(f"{role} has") as session:
        write(session, plan, rows[1])
    assert table(admin) == {"b": 2}


@pytest.mark.usefixtures("admin")
def test_creation_of_the_ledger_outlasts_the_request_timeout(
    node: EmbeddedCassandra, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node stalls while it creates the table. CREATE TABLE has a timeout of its own."""
    patient = {"username": role, "password": "first", "requestTimeout": "1"}
    target = CassandraTarget(options(node, **patient, ledgerTable="slow"))

    def while_it_stands(name: TableName) -> str:
        node.pause()
        threading.Timer(2.5, node.resume).start()
        return create_ledger(name)

    monkeypatch.setattr(ledger, "create_ledger", while_it_stands)
    target.plan(pa.schema({"k": pa.string(), "v": pa.int64()}), "k")


def test_error_after_a_dropped_ledger_advises_set_mark(flushing: Flushing, admin: Any) -> None:
    """The remedy of the first error creates an empty table. The remedy of the next error is the command."""
    mine = "SELECT * FROM ks.wal_sink_ledger WHERE query_id = %s"
    kept = admin.execute(mine, (flushing.world.query_id,)).one()
    admin.execute("DROP TABLE ks.wal_sink_ledger")
    epoch = flushing.batch(("b", 2))
    stopped = flushing.stops("SchemaMismatch", "wal_sink_ledger")
    assert "CREATE TABLE" in str(stopped.remedy)
    admin.execute(create_ledger(TableName("ks", "wal_sink_ledger")))
    assert "wal-sink set-mark" in str(flushing.stops("LedgerBehindLog").remedy)
    columns = ", ".join(kept._fields)
    marks = ", ".join("%s" for _ in kept)
    admin.execute(f"INSERT INTO ks.wal_sink_ledger ({columns}) VALUES ({marks})", tuple(kept))
    flushing.flushes(epoch)
    assert table(admin) == {"a": 1, "b": 2}


def test_withdrawn_permission_stops_the_flush_until_granted(
    flushing: Flushing, admin: Any, role: str
) -> None:
    """The remedy is the statement that grants it, for the rows and then for the ledger."""
    admin.execute(f"REVOKE MODIFY ON KEYSPACE ks FROM {role}")
    # If the role has created the ledger's table, it has every permission for it.
    admin.execute(f"REVOKE MODIFY ON TABLE ks.wal_sink_ledger FROM {role}")
    epoch = flushing.batch(("b", 2))
    for name in ("t", "wal_sink_ledger"):
        error = flushing.stops("TargetRefused", f"no MODIFY permission on <table ks.{name}>")
        assert error.remedy == f'GRANT MODIFY ON TABLE "ks"."{name}" TO "{role}";'
        admin.execute(error.remedy)
    flushing.flushes(epoch)
    assert table(admin) == {"a": 1, "b": 2}


def is_altered(admin: Any, statement: str) -> bool:
    """Return True if a role is altered.

    The node is overloaded if a password changes twice within five seconds.
    """
    try:
        admin.execute(statement)
    except OverloadedErrorMessage:
        return False
    return True


@pytest.mark.parametrize("role", [ROLES[1]], indirect=True)
def test_rotated_password_is_read_from_the_environment(
    flushing: Flushing,
    admin: Any,
    role: str,
    node: EmbeddedCassandra,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    until(lambda: is_altered(admin, f"ALTER ROLE {role} WITH PASSWORD = 'second'"))
    flushing.flushes(flushing.batch(("b", 2)))  # a session that is logged in stays logged in
    flushing.loop._flusher.close()
    epoch = flushing.batch(("c", 3))
    stopped = flushing.stops("OptionError", f"refuses the login of cassandra.username {role}")
    assert "WAL_SINK_CASSANDRA_PASSWORD" in str(stopped.remedy)
    assert "first" not in f"{stopped.last_error} {stopped.remedy}"
    monkeypatch.setenv("WAL_SINK_CASSANDRA_PASSWORD", "second")
    flushing.flushes(epoch)
    assert table(admin) == {"a": 1, "b": 2, "c": 3}
    # The tasks of a flush job get the password of this process's environment, or that of the option.
    with connect(flushing.world.target.for_tasks().options):
        monkeypatch.setenv("WAL_SINK_CASSANDRA_PASSWORD", "wrong")
    with connect(options(node, username=role, password="second")):
        pass


# --- TLS ------------------------------------------------------------------------------------------


def tls(node: EmbeddedCassandra, **arguments: object) -> CassandraOptions:
    result = {f"ssl__{name}": str(value) for name, value in arguments.items()}
    points = {"contactPoints": result.pop("ssl__at", node.host)}
    return options(
        node, username=ROLES[0], password="first", ssl__enabled="true", **points, **result
    )


@pytest.mark.usefixtures("admin")
def test_client_with_right_certificates_connects_by_tls(
    node: EmbeddedCassandra, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key may be encrypted, and the environment may have its password."""
    client = {"caCertificate": certificates.ca, "clientCertificate": certificates.client}
    encrypted = client | {"clientKey": certificates.encrypted_key}
    with connect(tls(node, **client, clientKey=certificates.client_key)) as connection:
        assert connection.session.execute("SELECT key FROM system.local").one()
        pipeline = RequestPipeline(connection, Concurrency(), 5, FlushMetrics())
        group = Group()
        group.requests = [EncodedBatch(0, b"", OwnStatements({}, "system"))]
        assert pipeline.send(group)
        assert pipeline.await_group().acknowledged == 1
    with connect(tls(node, **encrypted, clientKeyPassword=PASSWORD)):
        pass
    with pytest.raises(OptionError, match="cannot be used"):
        connect(tls(node, **encrypted))
    monkeypatch.setenv("WAL_SINK_CASSANDRA_SSL_CLIENT_KEY_PASSWORD", PASSWORD)
    with connect(tls(node, **encrypted)):
        pass


def test_many_requests_share_a_push_over_tls(
    node: EmbeddedCassandra,
    certificates: Certificates,
    admin: Any,
    role: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many requests share a push, which libev encrypts in pieces."""
    count, pushed = 5_000, Counter[str]()
    files = {"caCertificate": certificates.ca, "clientCertificate": certificates.client}
    chosen = tls(node, **files, clientKey=certificates.client_key)
    # A request that times out would be sent again by the driver, and not by a push.
    target = CassandraTarget(msgspec.structs.replace(chosen, request_timeout=60.0))
    keys = [f"{i:04}" * 250 for i in range(count)]
    batch = pa.record_batch({"k": keys, "v": pa.array(range(count), pa.int64())})
    plan = target.plan(batch.schema, "k")
    await_group = RequestPipeline.await_group

    def counted(self: RequestPipeline) -> SentGroup:
        sent = await_group(self)
        pushed.update(pushes=1, requests=sent.requests, acknowledged=sent.acknowledged)
        return sent

    monkeypatch.setattr(RequestPipeline, "await_group", counted)
    with target.connect(role) as session:
        assert isinstance(session, CassandraSession)
        (pool,) = session._connection.session.get_pools()
        assert isinstance(pool._connection, LibevConnection)
        assert isinstance(pool._connection._socket, ssl.SSLSocket)
        session.write(plan, RowSlice(0, target.check(batch, plan), 1))
        session.drain()
    assert pushed["acknowledged"] == pushed["requests"] > 2 * pushed["pushes"] > 0
    assert table(admin) == dict(zip(keys, range(count), strict=True))


@pytest.mark.usefixtures("admin")
def test_error_of_a_wrong_certificate_names_its_option(
    node: EmbeddedCassandra, certificates: Certificates
) -> None:
    client = {"clientCertificate": certificates.client, "clientKey": certificates.client_key}
    with pytest.raises(OptionError, match="certificate verify failed") as refused:
        connect(tls(node, caCertificate=certificates.stranger, **client))
    assert "cassandra.ssl.caCertificate" in refused.value.remedy
    with pytest.raises(OptionError, match="certificate verify failed"):
        connect(tls(node, **client))  # the system's
    with pytest.raises((OptionError, TargetUnavailable)) as hung_up:
        connect(tls(node, caCertificate=certificates.ca))
    assert "cassandra.ssl.clientCertificate" in hung_up.value.remedy
    elsewhere = {"at": ELSEWHERE, "caCertificate": certificates.ca, **client}
    with pytest.raises(OptionError, match="certificate is not valid for") as refused:
        connect(tls(node, **elsewhere))
    assert "cassandra.ssl.checkHostname" in refused.value.remedy
    with connect(tls(node, **elsewhere, checkHostname="false")):
        pass


def test_error_of_tls_to_a_plain_port_names_options(cassandra: Node) -> None:
    """OpenSSL reports a wrong version number."""
    with pytest.raises(TargetUnavailable, match="No connection") as refused:
        connect(options_of(cassandra, "ks", **{"cassandra.ssl.enabled": "true"}))
    assert "leave out cassandra.ssl.enabled" in refused.value.remedy
