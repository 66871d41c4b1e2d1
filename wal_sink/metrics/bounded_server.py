"""An HTTP server for the metrics with bounds: on connections, and on the time of a request."""

from __future__ import annotations

import io
import logging
import socket
import sys
import threading
import time
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

logger = logging.getLogger(__name__)

MOST_CONNECTIONS = 16
"""Connections that are answered at a time, a thread for each; one more is closed at once."""

REQUEST_S = 5.0
"""Seconds in which a client has to send its whole request, however it divides it."""

SEND_S = 10.0
"""Seconds in which a client has to take the answer."""


class BoundedServer(ThreadingMixIn, WSGIServer):
    """Listens as soon as it is made; `serve_forever` answers.

    :param host: address, or name of one, to listen on.
    :param port: 0 for one that is free, see `server_port`.
    :raises OSError: it cannot listen there.
    """

    daemon_threads = True
    request_queue_size = 128
    """Connections that wait in the kernel: a burst of clients is answered, or hung up on, without delay."""

    def __init__(self, host: str, port: int, app: Any) -> None:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, address = addresses[0]
        self._slots = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__((str(address[0]), int(address[1])), _Handler)
        self.set_app(app)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or hang up where too many are answered already."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # there is no thread that would give it back
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one request."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Note what a client did wrong where it disturbs no one: it may do it any number of times."""
        logger.debug(
            "a request for metrics from %s was not answered: %r", client_address, sys.exception()
        )


class _Handler(WSGIRequestHandler):
    """Handles one request."""

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Request(self.connection))

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


class _Request(io.RawIOBase):
    """What a client sends, as long as it is in time."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._until_s = time.monotonic() + REQUEST_S

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Receive some bytes.

        :raises TimeoutError: the client is late, whatever it has sent before.
        """
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the request took too long")
        self._connection.settimeout(left_s)
        size = self._connection.recv_into(buffer)
        self._connection.settimeout(SEND_S)
        return size
