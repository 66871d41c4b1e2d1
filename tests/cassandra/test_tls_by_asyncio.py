"""The driver's event loop of asyncio, over which it cannot speak TLS: what is said then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.cassandra.certificates import Certificates

_BY_ASYNCIO = """
import socket, ssl, sys, threading, time
from pathlib import Path
import cassandra.cluster
from cassandra.io.asyncioreactor import AsyncioConnection
cassandra.cluster.Cluster.connection_class = AsyncioConnection  # as from Python 3.12 on, without libev
from wal_sink.errors import TargetUnavailable
from wal_sink.options import parse
from wal_sink.targets.cassandra import CassandraOptions
from wal_sink.targets.cassandra.driver.connection import connect
ca, certificate, key = sys.argv[1:]
server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
server.load_cert_chain(certificate, key)
listening = server.wrap_socket(socket.create_server(("127.0.0.1", 0)), server_side=True)
asked = []
def serve():
    connection, _ = listening.accept()
    asked.append(connection.recv(9))
threading.Thread(target=serve, daemon=True).start()
raw = {"keyspace": "k", "table": "t", "cassandra.contactPoints": "127.0.0.1"}
raw |= {"cassandra.port": str(listening.getsockname()[1]), "cassandra.requestTimeout": "2"}
raw |= {"cassandra.ssl.enabled": "true", "cassandra.ssl.caCertificate": ca}
try:
    connect(parse(raw, CassandraOptions))
except TargetUnavailable as error:
    print(b''.join(asked), error)
"""


def test_tls_by_asyncio(tmp_path: Path) -> None:
    """The driver's connection by asyncio sends nothing over TLS; the error says what to install."""
    made = Certificates(tmp_path, "127.0.0.1")
    files = map(str, (made.ca, made.client, made.client_key))
    command = [sys.executable, "-c", _BY_ASYNCIO, *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "runs by asyncio here, which takes no TLS" in done.stdout, done
    assert done.stdout.startswith("b'' "), "it has sent something: the driver takes TLS so"
