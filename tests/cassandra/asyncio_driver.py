"""The driver's connection over asyncio, with the fixes of the sink."""

from __future__ import annotations

from cassandra.io.asyncioreactor import AsyncioConnection

from wal_sink.targets.cassandra.driver.internals import ConnectionFixes


class Asyncio(ConnectionFixes, AsyncioConnection):  # type: ignore[misc]  # the driver has no types
    """The sink's connection class if the driver chooses asyncio: from Python 3.12 on, without libev."""
