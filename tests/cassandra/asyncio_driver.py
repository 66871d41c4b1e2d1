"""The driver's connection over asyncio, as the sink sets it up."""

from __future__ import annotations

from cassandra.io.asyncioreactor import AsyncioConnection

from wal_sink.targets.cassandra.driver.internals import ConnectionFixes


class Asyncio(ConnectionFixes, AsyncioConnection):  # type: ignore[misc]  # the driver has no types
    """What `WideConnection` is where the driver chooses asyncio: from Python 3.12 on, without libev."""
