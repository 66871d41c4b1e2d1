"""What a server says of itself: its product, its settings, where its keyspaces are."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from cassandra import InvalidRequest, Unauthorized

SETTINGS = (
    "minimum_timestamp_fail_threshold",
    "maximum_timestamp_fail_threshold",
    "user_timestamps_enabled",
    "write_consistency_levels_disallowed",
    "sai_string_term_size_fail_threshold",
    "sai_frozen_term_size_fail_threshold",
    "sai_vector_term_size_fail_threshold",
    "storage_compatibility_mode",
)
"""The settings that decide whether rows are taken."""

_SCYLLA = "scylla_local"
"""A table of `system` that only Scylla has."""


class Server(NamedTuple):
    """A cluster, as the node that was asked describes it."""

    release_version: str
    """Of Cassandra; products that speak its protocol name a version that they are like."""
    cluster_name: str
    replication: Mapping[str, Mapping[str, str]]
    """By keyspace, as `system_schema.keyspaces` has it."""
    settings: Mapping[str, str | None] | None = None
    """Those of `SETTINGS` that the server has; None: it has no such table, or this role may not read it."""
    scylla_version: str = ""
    """Empty where it is not Scylla."""
    tablets: Mapping[str, int] = MappingProxyType({})
    """Scylla's keyspaces with tablets, and how many a table begins with."""


def read_server(session: Any) -> Server:
    """Ask a node what it is.

    :param session: the driver's session.
    :raises Exception: of the driver.
    """
    local = session.execute("SELECT release_version, cluster_name FROM system.local").one()
    keyspaces = session.execute("SELECT keyspace_name, replication FROM system_schema.keyspaces")
    server = Server(
        release_version=local.release_version or "",
        cluster_name=local.cluster_name or "",
        replication={row.keyspace_name: dict(row.replication or {}) for row in keyspaces},
        settings=_settings(session),
    )
    tables = session.execute(
        "SELECT table_name FROM system_schema.tables WHERE keyspace_name = 'system'"
    )
    if _SCYLLA not in {row.table_name for row in tables}:
        return server
    version = session.execute("SELECT version FROM system.versions WHERE key = 'local'").one()
    return server._replace(
        scylla_version=version.version if version else "unknown", tablets=_tablets(session)
    )


def _settings(session: Any) -> dict[str, str | None] | None:
    names = ", ".join(f"'{name}'" for name in SETTINGS)
    query = f"SELECT name, value FROM system_views.settings WHERE name IN ({names})"  # noqa: S608 -- constants
    try:
        return {row.name: row.value for row in session.execute(query)}
    except (InvalidRequest, Unauthorized):
        return None


def _tablets(session: Any) -> dict[str, int]:
    query = "SELECT keyspace_name, initial_tablets FROM system_schema.scylla_keyspaces"
    try:
        rows = list(session.execute(query))
    except InvalidRequest:
        return {}  # a version without tablets
    return {
        row.keyspace_name: row.initial_tablets for row in rows if row.initial_tablets is not None
    }
