"""A TCP proxy before the server, which cuts a connection at its COMMIT."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Literal, Self

When = Literal["before", "after"]


class Proxy:
    """Copies bytes between clients and a server, until a test lets it lose a COMMIT.

    :param host: the address of the server, and `port`: its port.
    """

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        """The port for clients, on 127.0.0.1."""
        self._lose: When | None = None
        self._unanswered: socket.socket | None = None
        """The connection whose next answer the client does not get."""
        self.lost = 0
        """The number of lost answers."""

    def lose_commit(self, when: When) -> None:
        """Cut the connection at the next COMMIT: before the server gets it, or after its answer."""
        self._lose = when

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                for copy in (self._requests, self._answers):
                    threading.Thread(target=copy, args=(client, server), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with _cutting(client, server):
            while data := client.recv(65_536):
                if self._lose is not None and b"COMMIT" in data:
                    when, self._lose = self._lose, None
                    self.lost += 1
                    if when == "before":
                        return
                    self._unanswered = server
                server.sendall(data)

    def _answers(self, client: socket.socket, server: socket.socket) -> None:
        with _cutting(client, server):
            while data := server.recv(65_536):
                if server is self._unanswered:
                    return
                client.sendall(data)


@contextlib.contextmanager
def _cutting(*ends: socket.socket) -> Iterator[None]:
    """Cut both connections at the end of a block."""
    with contextlib.suppress(OSError):
        yield
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
