"""Three Cassandra nodes with TLS, and a role with the least permissions whose password changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cassandra.certificates import Certificates
from tests.cassandra.login import SETTINGS
from tests.deploy.cassandra_nodes import REPLICATION, CassandraCluster, until
from tests.deploy.test_cassandra_nodes import Stream, count_rows
from tests.support.deploy_table import Counted
from wal_sink.targets.cassandra.ledger import create_ledger
from wal_sink.targets.cassandra.row_plan import TableName

pytestmark = [pytest.mark.test_all, pytest.mark.cassandra, pytest.mark.timeout(1_200)]

PASSWORD = "WAL_SINK_CASSANDRA_PASSWORD"


def test_flush_continues_after_a_change_of_password(
    tmp_path: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the change each node restarts. The driver logs in again, and uses all nodes."""
    monkeypatch.setattr("wal_sink.flush.loop._RETRY_MOST_S", 0.5)
    certificates = Certificates(tmp_path, *(f"127.0.1.{number}" for number in (1, 2, 3)))
    settings = {**SETTINGS, "credentials_validity": "0ms", **certificates.settings}
    with CassandraCluster(settings) as cluster:
        admin = cluster.nodes[0]
        admin.execute(f"ALTER KEYSPACE system_auth WITH replication = {REPLICATION}")
        admin.tool("repair", "--full", "system_auth")
        admin.execute("CREATE ROLE flusher WITH LOGIN = true AND PASSWORD = 'first'")
        monkeypatch.setenv(PASSWORD, "first")

        def grant(keyspace: str) -> None:
            admin.execute(create_ledger(TableName(keyspace, "wal_sink_ledger")))
            admin.execute(f"GRANT MODIFY ON {keyspace}.t TO flusher")
            for right in ("SELECT", "MODIFY"):
                admin.execute(f"GRANT {right} ON {keyspace}.wal_sink_ledger TO flusher")

        files = {
            "caCertificate": certificates.ca,
            "clientCertificate": certificates.client,
            "clientKey": certificates.client_key,
        }
        options = {
            "cassandra.username": "flusher",
            "cassandra.ssl.enabled": "true",
            **{f"cassandra.ssl.{name}": str(file) for name, file in files.items()},
        }
        with Stream(cluster, tmp_path, options=options, prepare=grant) as stream:
            admin.execute("ALTER ROLE flusher WITH PASSWORD = 'second'")
            monkeypatch.setenv(PASSWORD, "second")
            for node in reversed(cluster.nodes):
                node.kill()
                stream.goes_on()
                node.start()
                cluster.await_up()
                stream.goes_on()
            for node in cluster.nodes:
                asked = node.proxy.requests
                until(lambda node=node, asked=asked: node.proxy.requests > asked + 20)  # type: ignore[misc]
            count_rows(
                [stream], ["rows"], "TLS, least rights; password rotated, nodes killed", counted
            )
