"""The driver's event loops: segments that arrive in parts, and TLS, which asyncio does not support."""

from __future__ import annotations

import io
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cassandra.connection import segment_codec_no_compression
from cassandra.protocol import OptionsMessage, SupportedMessage

from tests.cassandra.asyncio_driver import Asyncio
from tests.cassandra.certificates import Certificates
from tests.cassandra.cql_nodes import OPTIONS, Frame, well
from tests.support.waiting import until
from wal_sink.targets.cassandra.driver.internals import WideConnection

HEAD = struct.Struct(">BBhBi")
READY = 0x02
SEGMENT_HEADER = 6
LOOPS = [WideConnection, Asyncio]


def framed(answer: Frame) -> bytes:
    """Return an answer as a node sends it before segments are negotiated."""
    return HEAD.pack(0x85, 0, answer.stream, answer.opcode, len(answer.body)) + answer.body


def segment(answer: Frame) -> bytes:
    """Return an answer in a segment."""
    segment_codec_no_compression.encode(buffer := io.BytesIO(), framed(answer))
    return buffer.getvalue()


def stream_of(node: socket.socket) -> int:
    """Read a request of the handshake, and return its stream."""
    _, _, stream, _, length = HEAD.unpack(node.recv(HEAD.size, socket.MSG_WAITALL))
    node.recv(length, socket.MSG_WAITALL)
    return int(stream)


@contextmanager
def connected(loop: type) -> Iterator[tuple[Any, socket.socket]]:
    """Yield a connection of protocol version 5, and the node's end of it."""
    own, node = socket.socketpair()
    node.settimeout(10)
    over = {"_connect_socket": lambda self: setattr(self, "_socket", own)}
    kind: Any = type("Paired", (loop,), over)
    kind.initialize_reactor()
    connection = kind("nowhere", protocol_version=5)
    try:
        node.sendall(framed(well(Frame(stream_of(node), OPTIONS, b""))))
        node.sendall(framed(Frame(stream_of(node), READY, b"")))
        assert connection.connected_event.wait(10)
        yield connection, node
    finally:
        connection.close()
        node.close()


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("cut", range(1, SEGMENT_HEADER))
def test_segment_cut_in_its_header_is_read(loop: type, cut: int) -> None:
    """The read brings an answer, and the first bytes of the next one."""
    with connected(loop) as (connection, node):
        answers: list[Any] = []
        streams = [connection.get_request_id() for _ in range(2)]
        for stream in streams:
            connection.send_msg(OptionsMessage(), stream, answers.append)
        first, second = (segment(well(Frame(stream, OPTIONS, b""))) for stream in streams)
        node.sendall(first + second[:cut])
        until(lambda: answers, 10)  # what was sent at once is read at once
        node.sendall(second[cut:])
        until(lambda: len(answers) == 2, 10)
        assert [type(answer) for answer in answers] == [SupportedMessage] * 2, answers


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


def test_tls_over_asyncio_names_the_missing_library(tmp_path: Path) -> None:
    """The connection sends nothing. The error says what to install."""
    made = Certificates(tmp_path, "127.0.0.1")
    files = map(str, (made.ca, made.client, made.client_key))
    command = [sys.executable, "-c", _BY_ASYNCIO, *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "runs by asyncio here, which takes no TLS" in done.stdout, done
    assert done.stdout.startswith("b'' "), "it has sent something: the driver takes TLS so"
