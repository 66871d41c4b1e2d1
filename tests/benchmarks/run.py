"""The result of one run of one contender."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


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
    """The client CPU; None takes that of this process and its descendants, without the servers."""
