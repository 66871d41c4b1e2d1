"""One process of `raw`: `python -m tests.benchmarks.contenders.raw_client SHARE.json`.

It makes all requests ahead of time, says so, waits for a line on standard input, sends, and prints what
that took.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Sequence

import msgspec
import numpy as np

from tests.benchmarks.contenders.frames import frame, writes
from tests.benchmarks.rows import Source

_ERROR, _STARTUP, _READY, _RESULT, _PREPARE = 0x00, 0x01, 0x02, 0x08, 0x09
_HEADER = struct.Struct(">BBhBi")


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What one process sends."""

    host: str
    port: int
    insert: str
    """Statement whose marks are the columns and then the timestamp."""
    source: Source
    first: int
    last: int
    """Ids of its rows, the last one not included."""
    per_batch: int
    in_flight: int


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What it took."""

    began_s: float
    ended_s: float
    """On the clock that all processes of the machine share."""
    cpu_s: float


def main(share: Share) -> None:
    """Prepare, wait, send, report."""
    connection = socket.create_connection((share.host, share.port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    version = struct.pack(">H", 1) + _string("CQL_VERSION") + _string("3.0.0")
    _ask(connection, _STARTUP, version, _READY)
    statement = share.insert.encode()
    question = struct.pack(">i", len(statement)) + statement
    answer = _ask(connection, _PREPARE, question, _RESULT)
    length = struct.unpack_from(">H", answer, 4)[0]  # after the kind of result
    requests = writes(
        share.source.table(np.arange(share.first, share.last)),
        answer[6 : 6 + length],
        time.time_ns() // 1_000,
        share.per_batch,
        by_partition=share.source.shape != "scattered",
    )
    print("ready", flush=True)  # noqa: T201 - to the parent
    sys.stdin.readline()
    cpu_s, began_s = time.process_time(), time.monotonic()
    send(connection, requests, share.in_flight)
    sent = Sent(began_s=began_s, ended_s=time.monotonic(), cpu_s=time.process_time() - cpu_s)
    print(msgspec.json.encode(sent).decode())  # noqa: T201 - to the parent


def send(connection: socket.socket, requests: Sequence[bytes], in_flight: int) -> None:
    """Send all requests, `in_flight` at a time, and see that each is acknowledged.

    :raises RuntimeError: one is not.
    """
    sent = acknowledged = 0
    received = b""
    while acknowledged < len(requests):
        free = min(in_flight - (sent - acknowledged), len(requests) - sent)
        if free:
            connection.sendall(b"".join(requests[sent : sent + free]))
            sent += free
        received += _some(connection)
        count, received = _acknowledged(received)
        acknowledged += count


def _acknowledged(received: bytes) -> tuple[int, bytes]:
    """Count the whole frames; return also what is left."""
    count = begin = 0
    while len(received) - begin >= _HEADER.size:
        *_, opcode, length = _HEADER.unpack_from(received, begin)
        end = begin + _HEADER.size + length
        if end > len(received):
            break
        if opcode != _RESULT:
            raise RuntimeError(f"not acknowledged: {received[begin:end]!r}")
        count, begin = count + 1, end
    return count, received[begin:]


def _ask(connection: socket.socket, opcode: int, body: bytes, wanted: int) -> bytes:
    connection.sendall(frame(opcode, body))
    received = b""
    while len(received) < _HEADER.size or len(received) < _size(received):
        received += _some(connection)
    if received[4] != wanted:
        raise RuntimeError(f"request {opcode} was answered by {received!r}")
    return received[_HEADER.size :]


def _size(received: bytes) -> int:
    return _HEADER.size + int(_HEADER.unpack_from(received)[-1])


def _some(connection: socket.socket) -> bytes:
    received = connection.recv(1 << 16)
    if not received:
        raise RuntimeError("the server closed the connection")
    return received


def _string(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Share))
