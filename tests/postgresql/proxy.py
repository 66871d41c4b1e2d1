"""A TCP proxy before the server, which cuts a connection at its COMMIT."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Literal, Self

When = Literal["before", "after"]


class Proxy:
    """Passes bytes on between clients and a server, until it is told to lose a COMMIT.

    :param host: of the server.
    :param port: of the server.
    """

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lose: When | None = None
        self._unanswered: socket.socket | None = None
        """Where the answer to COMMIT is waited for, and not passed on."""
        self.lost = 0
        """How many answers were lost."""

    @property
    def port(self) -> int:
        """Where clients connect, on 127.0.0.1."""
        return int(self._listener.getsockname()[1])

    def lose_commit(self, when: When) -> None:
        """Cut the connection that commits next: before the server has heard of it, or after it answered."""
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
                for work in (self._requests, self._answers):
                    threading.Thread(target=work, args=(client, server), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65_536):
                if self._lose is not None and b"COMMIT" in data:
                    if self._lose == "after":
                        self._lose = None
                        self.lost += 1
                        self._unanswered = server
                        server.sendall(data)
                        continue
                    self._lose = None
                    self.lost += 1
                    break
                server.sendall(data)
        self._end(client, server)

    def _answers(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65_536):
                if server is self._unanswered:
                    break
                client.sendall(data)
        self._end(client, server)

    @staticmethod
    def _end(*sockets: socket.socket) -> None:
        for end in sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
