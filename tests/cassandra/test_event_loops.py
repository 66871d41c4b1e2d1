"""The driver's event loops, with segments that arrive in parts, over sockets."""

from __future__ import annotations

import io
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from cassandra.connection import segment_codec_no_compression
from cassandra.protocol import OptionsMessage, SupportedMessage

from tests.cassandra.asyncio_driver import Asyncio
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
