"""Chooses ports on which a node can come back after it was killed."""

from __future__ import annotations

import errno
import secrets
import socket


def choose(host: str, count: int = 1) -> int:
    """Choose the first of `count` neighbouring ports that still are free when the node comes back.

    Those that the kernel would choose are not: it gives them to outgoing connections as well, even
    to a driver that knocks at the very port and then is connected to itself.
    """
    while True:
        port = 20_000 + 2 * secrets.randbelow(6_000)  # below where Linux and macOS choose from
        if are_free(host, port, count):
            return port


def are_free(host: str, port: int, count: int = 1) -> bool:
    """Whether `count` ports are free from `port` on."""
    try:
        for number in range(port, port + count):
            socket.create_server((host, number)).close()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True
