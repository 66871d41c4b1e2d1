"""A TCP proxy that delays, cuts and loses what passes between clients and a server."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable

LEDGER_UPDATE = re.compile(rb"[0-9a-f]{64}\0\0\0\x24[0-9a-f-]{36}")
"""Matches the request that updates a ledger row of Cassandra: the new digest, and the length and text of the
query's id. The request executes a prepared statement, so it does not contain the name of the table.
"""


class Proxy:
    """A proxy at the same port as the server, and at another address.

    :param host: the address for clients.

    :param server: the address of the server.
    """

    def __init__(self, host: str, port: int, server: str) -> None:
        self.host, self._port, self._server = host, port, server
        self._listener: socket.socket | None = None
        self._open: set[socket.socket] = set()
        self._mute = threading.Event()
        self.latency_s = 0.0
        """Delay of each chunk of an answer, in seconds."""
        self.bytes_per_s = 0
        """Limit for each connection and direction; 0 for no limit."""
        self._at_update: Callable[[], None] | None = None
        self._losing: set[socket.socket] = set()
        self.lost = 0
        """Number of answers that were lost."""
        self.requests = 0
        """Number of chunks of requests."""
        self.ledger_updates = 0
        """Number of chunks with a `LEDGER_UPDATE`."""

    def start(self) -> None:
        """Accept connections."""
        self._listener = socket.create_server((self.host, self._port))
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        """Accept no more connections, and cut the open ones."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        self.reset()

    def reset(self) -> None:
        """Cut all connections by a reset."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                connection.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def half_open(self):  # type: ignore[no-untyped-def]
        """Lose all answers while the block runs. Requests and new connections pass."""
        self._mute.set()
        try:
            yield
        finally:
            self._mute.clear()
            self.reset()

    def at_ledger_update(self, then: Callable[[], None]) -> None:
        """Call a function after the next update of a ledger row, and lose the answer."""
        self._at_update = then

    def _accept(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection((self._server, self._port))
                except OSError:  # the server is down, so the client is refused
                    client.close()
                    continue
                self._open |= {client, server}
                for work in (self._requests, self._answers):
                    threading.Thread(target=work, args=(client, server), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65_536):
                self.requests += 1
                then = None
                if LEDGER_UPDATE.search(data):
                    self.ledger_updates += 1
                    then, self._at_update = self._at_update, None
                if then is not None:
                    self._losing.add(server)
                self._pace(data)
                server.sendall(data)
                if then is not None:
                    self.lost += 1
                    then()
        self._end(client, server)

    def _pace(self, data: bytes) -> None:
        if self.bytes_per_s:
            time.sleep(len(data) / self.bytes_per_s)

    def _answers(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65_536):
                time.sleep(self.latency_s)
                self._pace(data)
                if server in self._losing:
                    break
                if not self._mute.is_set():
                    client.sendall(data)
        self._end(client, server)

    def _end(self, *sockets: socket.socket) -> None:
        for connection in sockets:
            self._open.discard(connection)
            self._losing.discard(connection)
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
