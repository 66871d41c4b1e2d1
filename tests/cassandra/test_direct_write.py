"""Who writes requests to their socket: the thread that makes them, and the driver's what does not fit."""

from __future__ import annotations

import itertools
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from cassandra.io.libevreactor import LibevConnection

from tests.support.waiting import until
from wal_sink.targets.cassandra.driver.internals import WritingConnection

HEAD = struct.Struct(">IB")
"""Of a message of these tests: its length, and what all its bytes are."""
THREADS, MESSAGES = 4, 60
LARGE = 3_000_000
"""Bytes that no socket takes at once."""


class Noting(socket.socket):
    """A socket that is not plain, as one with TLS; it notes which threads write."""

    def __init__(self, of: socket.socket) -> None:
        super().__init__(of.family, of.type, of.proto, of.detach())
        self.writers: set[str] = set()

    def send(self, *args: Any) -> int:
        self.writers.add(threading.current_thread().name)
        return super().send(*args)


class Paired(WritingConnection, LibevConnection):  # type: ignore[misc]  # the driver has no types
    """A connection of the driver over a socket that a test has."""

    def __init__(self, own: socket.socket) -> None:
        self.own = own
        super().__init__("nowhere")

    def _connect_socket(self) -> None:
        self._socket = self.own


@contextmanager
def connected(
    kind: Callable[[socket.socket], socket.socket] = lambda plain: plain,
    of: type[Paired] = Paired,
) -> Iterator[tuple[Any, socket.socket]]:
    """Yield a connection, and the node's end of it, which has read the driver's first request."""
    own, other = socket.socketpair()
    Paired.initialize_reactor()
    connection = of(kind(own))
    try:
        other.settimeout(10)
        assert other.recv(1000)
        until(lambda: not connection._write_watcher_is_active)
        yield connection, other
    finally:
        connection.close()
        other.close()


def read(other: socket.socket, size: int) -> bytes:
    """Read so many bytes."""
    found = bytearray()
    while len(found) < size:
        some = other.recv(min(60_000, size - len(found)))
        assert some, "the connection has ended"
        found += some
    return bytes(found)


def test_a_request_is_there_when_push_returns() -> None:
    with connected() as (connection, other):
        other.setblocking(False)
        for number in range(200):
            connection.push(b"x" * (number + 1))
            assert len(other.recv(1000)) == number + 1


def test_what_does_not_fit_is_written_by_the_driver() -> None:
    """Meanwhile the connection says that its socket is full, and what is pushed then comes after it."""
    data = bytes(range(256)) * (LARGE // 256)
    with connected() as (connection, other):
        connection.push(data)
        assert not connection._socket_writable
        connection.push(b"after")
        assert read(other, len(data)) == data
        assert read(other, 5) == b"after"
        until(lambda: connection._socket_writable)


def test_messages_of_many_threads_come_whole() -> None:
    """Some fit and some do not."""
    with connected() as (connection, other):
        connection._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)

        def push(thread: int) -> None:
            for number in range(MESSAGES):
                size = (1, 500, 30_000, 200_000)[(thread + number) % 4]
                connection.push(HEAD.pack(size, thread) + bytes([thread]) * size)

        with ThreadPoolExecutor(THREADS) as threads:
            pushed = [threads.submit(push, thread) for thread in range(THREADS)]
            for _ in range(THREADS * MESSAGES):
                size, thread = HEAD.unpack(read(other, HEAD.size))
                assert thread < THREADS
                assert set(read(other, size)) == {thread}
            for each in pushed:
                each.result()
        until(lambda: connection._socket_writable)


@contextmanager
def standing(connection: Any) -> Iterator[None]:
    """Let the driver's thread stand still."""
    stands, goes_on = threading.Event(), threading.Event()

    def stand() -> None:
        stands.set()
        goes_on.wait(10)

    connection.create_timer(0, stand)
    assert stands.wait(10)
    try:
        yield
    finally:
        goes_on.set()


def test_nothing_is_written_before_what_is_queued() -> None:
    with connected() as (connection, other):
        with standing(connection):
            connection.deque.append(b"first")
            connection.push(b"second")
        connection.push(b"third")
        assert read(other, 16) == b"firstsecondthird"


def test_nothing_is_written_while_the_driver_may_be_writing() -> None:
    """What it writes has left the queue, and may come back to its beginning."""
    with connected() as (connection, other):
        with standing(connection):
            connection._write_watcher_is_active = True
            connection.push(b"second")
            connection.deque.appendleft(b"first")
            connection._write_watcher_is_active = False
        assert read(other, 11) == b"firstsecond"


class Between(Paired):
    """Stops the first thread between what it has written and the rest."""

    def __init__(self, own: socket.socket) -> None:
        self.stops, self.goes_on = threading.Event(), threading.Event()
        super().__init__(own)

    @property
    def _socket_writable(self) -> bool:
        return not self.stops.is_set()

    @_socket_writable.setter
    def _socket_writable(self, value: bool) -> None:
        if not (value or self.stops.is_set()):
            self.stops.set()
            self.goes_on.wait(10)


def test_nothing_comes_between_a_message_and_its_rest() -> None:
    with connected(of=Between) as (connection, other), ThreadPoolExecutor(2) as threads:
        pushed = [threads.submit(connection.push, b"1" * LARGE)]
        assert connection.stops.wait(10)
        pushed.append(threads.submit(connection.push, b"2"))
        time.sleep(0.2)  # it is not done
        connection.goes_on.set()
        assert read(other, LARGE + 1) == b"1" * LARGE + b"2"
        for each in pushed:
            each.result()


def test_messages_of_one_thread_keep_their_order() -> None:
    """The queue of the driver's thread runs empty again and again while others are pushed."""
    sizes = [1, 90_000, 10, 300_000, 1, 1, 40_000] * 40
    with connected() as (connection, other), ThreadPoolExecutor(1) as thread:
        connection._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        found = thread.submit(read, other, sum(sizes))
        expected = []
        for size, number in zip(sizes, itertools.cycle(range(251)), strict=False):
            expected.append(bytes([number]) * size)
            connection.push(expected[-1])
        assert found.result() == b"".join(expected)


def test_a_socket_with_tls_is_left_to_the_driver() -> None:
    with connected(Noting) as (connection, other):
        connection.push(b"some")
        assert read(other, 4) == b"some"
        assert connection._socket.writers == {"event_loop"}


@pytest.mark.parametrize("size", [10, LARGE])
def test_a_lost_connection_is_met_by_the_driver(size: int) -> None:
    """`push` raises nothing, and the requests in flight fail."""
    with connected() as (connection, other):
        failed: list[Any] = []
        connection._requests[7] = (failed.append, None, None)
        other.close()
        connection.push(b"x" * size)
        until(lambda: bool(failed))
        assert connection.is_closed
