"""A TCP proxy before the server, which cuts a connection at its COMMIT."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
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
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._server) as server, contextlib.suppress(OSError):
            while True:
                for end in select.select([client, server], [], [])[0]:
                    if not (data := end.recv(65_536)):
                        return
                    if end is server:
                        client.sendall(data)
                    elif self._lose is None or b"COMMIT" not in data:
                        server.sendall(data)
                    else:
                        when, self._lose = self._lose, None
                        self.lost += 1
                        if when == "after":
                            server.sendall(data)
                            server.recv(65_536)
                        return
