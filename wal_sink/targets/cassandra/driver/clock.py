"""Asks which time it is in Cassandra: the clock of the node that coordinates the request."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from cassandra import InvalidRequest
from cassandra.protocol import SyntaxException

from wal_sink.targets.cassandra.driver.retry import retrying

_QUERY = "SELECT currentTimestamp() AS now FROM system.local"
"""Not `now()`: a node's timeuuids never go back, so one glitch of its clock would stay in them."""


def server_now_us(session: Any) -> int | None:
    """Return a node's time, microseconds since 1970; None from a server that does not know the function.

    The driver asks one node after the other, so several calls hear several clocks.

    :param session: the driver's session.
    """
    try:
        row = retrying()(session.execute, _QUERY).one()
    except (InvalidRequest, SyntaxException):
        return None
    if row is None or row.now is None:
        return None
    return int(row.now.replace(tzinfo=UTC).timestamp() * 1_000) * 1_000
