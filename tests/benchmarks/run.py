"""Measures one run of one contender."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from tests.benchmarks import cpu
from tests.benchmarks.rows import Source
from tests.benchmarks.server import Server


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run."""

    contender: str
    shape: str
    rows: int
    round: int
    seconds: float
    client_cpu_s: float
    """The CPU time of the client: driver, JVM and Python workers."""
    server_cpu_s: float
    warnings: int
    """The number of batches that the server's log reports as too large."""
    partitions: int = 0
    """The number of partitions of the table; 0 for a table without partitions."""

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds

    @property
    def client_us(self) -> float:
        """The client CPU of a row in microseconds."""
        return self.client_cpu_s / self.rows * 1e6

    @property
    def server_us(self) -> float:
        """The server CPU of a row in microseconds."""
        return self.server_cpu_s / self.rows * 1e6


class Taken(NamedTuple):
    """The measurements that a contender makes itself."""

    seconds: float
    client_cpu_s: float | None = None
    """The client CPU; None takes that of this process and its descendants."""


def take(
    server: Server, what: Callable[[], Taken], *, contender: str, source: Source, number: int
) -> Run:
    """Let a contender write a source; measure the CPU of client and server."""
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
