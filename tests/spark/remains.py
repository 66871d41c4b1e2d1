"""Threads, connections and processes that an application has left behind."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

_OF_A_CLUSTER = ("Task Scheduler", "Connection heartbeat")
"""Threads that Cassandra's driver has for each `Cluster`. Its event loop stays until the process ends."""

_ESTABLISHED = "01"


def remains(port: int) -> set[str]:
    """Return this process's threads of the sink and of the driver, and its connections to `port`."""
    threads = {
        f"{thread.name} {thread.ident}"
        for thread in threading.enumerate()
        if thread.name.startswith(("wal_sink", *_OF_A_CLUSTER))
    }
    return threads | set(_connections(port))


def processes(session: int) -> list[tuple[int, str]]:
    """Return id and command of all processes that were started in a session (see `setsid`)."""
    running = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has just ended
            state, _parent, _group, its, *_ = (
                (folder / "stat").read_text().rpartition(")")[2].split()
            )
            if int(its) == session and state != "Z":
                command = (folder / "cmdline").read_text().replace("\0", " ")
                running.append((int(folder.name), command))
    return running


def none_left(session: int, seconds: float = 20.0) -> bool:
    """Wait until a session has no process; the JVM ends a moment after its driver."""
    deadline = time.monotonic() + seconds
    while processes(session) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not processes(session)


def _connections(port: int) -> Iterator[str]:
    mine = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            mine.add(str(descriptor.readlink()))
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *rest = line.split()
        to_port = int(remote.rpartition(":")[2], 16) == port
        if to_port and state == _ESTABLISHED and f"socket:[{rest[5]}]" in mine:
            yield f"connection from {local}"
