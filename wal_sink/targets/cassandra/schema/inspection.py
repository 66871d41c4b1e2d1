"""Looks at the server before anything is written: refuses an unfit one, and logs what will surprise."""

from __future__ import annotations

import functools
import logging
from typing import Any

from wal_sink.targets.cassandra.driver.credentials import login
from wal_sink.targets.cassandra.names import quote
from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.targets.cassandra.schema.fitness import notices, refuse_unfit
from wal_sink.targets.cassandra.schema.server import Server, read_server

log = logging.getLogger(__name__)


def inspect_server(session: Any, options: CassandraOptions) -> Server:
    """Return what the server says of itself.

    :param session: the driver's session.
    :raises SchemaMismatch: rows cannot be written exactly once there.
    :raises Exception: of the driver.
    """
    server = read_server(session)
    refuse_unfit(server, options)
    for notice in notices(server, options):
        _say(logging.WARNING, notice)
    if server.settings is None and not server.scylla_version and (role := login(options)):
        _say(
            logging.INFO,
            "the server's limits cannot be read, and its defaults are taken for them; to see them at the"
            f" start: GRANT SELECT ON system_views.settings TO {quote(role.username)};",
        )
    return server


@functools.cache
def _say(level: int, text: str) -> None:
    """Log a text once in the life of the process: connections come and go."""
    log.log(level, "%s", text)
