"""What one run of one contender took, and how it is taken."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from tests.benchmarks import cpu
from tests.benchmarks.rows import Source
from tests.benchmarks.server import Server


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    contender: str
    shape: str
    rows: int
    round: int
    seconds: float
    client_cpu_s: float
    """Of everything that sends: driver, JVM and Python workers."""
    server_cpu_s: float
    warnings: int
    """Batches that the server's log calls too large."""
    partitions: int = 0
    """Of the table; 0 where a table has none."""

    @property
    def rows_per_s(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds

    @property
    def client_us(self) -> float:
        """Microseconds of client CPU a row."""
        return self.client_cpu_s / self.rows * 1e6

    @property
    def server_us(self) -> float:
        """Microseconds of server CPU a row."""
        return self.server_cpu_s / self.rows * 1e6


class Taken(NamedTuple):
    """What a contender says of its own run."""

    seconds: float
    client_cpu_s: float | None = None
    """None: what this process and all that it has started used meanwhile."""


def take(
    server: Server, what: Callable[[], Taken], *, contender: str, source: Source, number: int
) -> Run:
    """Bring a source into a table, and count both sides' CPU meanwhile."""
    client, served, warned = _client(server), server.cpu_s(), server.warnings()
    taken = what()
    own = taken.client_cpu_s
    return Run(
        contender=contender,
        shape=source.shape,
        rows=source.rows,
        round=number,
        seconds=taken.seconds,
        client_cpu_s=_client(server) - client if own is None else own,
        server_cpu_s=server.cpu_s() - served,
        warnings=server.warnings() - warned,
        partitions=source.partitions,
    )


def _client(server: Server) -> float:
    return cpu.of_tree(os.getpid(), without=server.pid)
