"""Permissions that the sink's role needs: asked for when a query starts, and named where one is missing."""

from __future__ import annotations

import contextlib
import re
from typing import Any

from cassandra import InvalidRequest, Unauthorized

from wal_sink.errors import TargetRefused
from wal_sink.targets.cassandra.options import CassandraOptions, login
from wal_sink.targets.cassandra.table import TableMetadata
from wal_sink.targets.names import quote


def refuse_missing_permissions(
    session: Any, options: CassandraOptions, live: TableMetadata
) -> None:
    """Refuse a role that may not write rows, or not read and move the ledger.

    The statements take no rows, so nothing is read or written. A role need not be allowed to list its
    permissions, and permissions that other products have are found, too.

    :param session: the driver's session.
    :param live: the table; one that is missing is not asked about.
    :raises TargetRefused: names the permission that is missing.
    """
    partition = [quote(column.name) for column in live.columns if column.role == "partition"]
    no_rows = " AND ".join(f"{name} IN ()" for name in partition)
    ledger = f"FROM {options.ledger} WHERE query_id IN ()"
    statements = [f"SELECT log_id, epoch, digest {ledger}", f"DELETE {ledger}"]
    if no_rows:
        statements.insert(0, f"DELETE FROM {live.name} WHERE {no_rows}")  # noqa: S608 -- quoted names
    for statement in statements:
        # Neither a ledger that a dry run does not make, nor a server without `IN ()`, is about permissions.
        with contextlib.suppress(InvalidRequest):
            try:
                session.execute(statement)
            except Unauthorized as error:
                raise missing_permission(error, options) from error


_MISSING = re.compile(
    r"has no (?P<permission>\w+)(?: nor \w+)? permission on"
    r" (?:<table (?P<table>\S+)>|table (?P<masked>[^,\s]+)|<all tables in (?P<keyspace>\w+)>)"
)
"""How Cassandra 3.11 to 5.0 says it; of masked columns it names UNMASK first (`SelectStatement`)."""


def missing_permission(error: Unauthorized, options: CassandraOptions) -> TargetRefused:
    """Return the error that names the permission that a role lacks, with the statement that grants it."""
    role = login(options)
    name = quote(role.username) if role else "the role"
    statements = [
        f"GRANT MODIFY ON TABLE {options.data} TO {name};",
        f"GRANT SELECT ON TABLE {options.ledger} TO {name};",
        f"GRANT MODIFY ON TABLE {options.ledger} TO {name};",
    ]
    if missing := _MISSING.search(str(error)):
        resource = f"KEYSPACE {quote(missing['keyspace'] or '')}"
        if table := missing["table"] or missing["masked"]:
            resource = f"TABLE {'.'.join(map(quote, table.split('.', 1)))}"
        statements = [f"GRANT {missing['permission']} ON {resource} TO {name};"]
    return TargetRefused(
        f"Cassandra at {options.where} refuses a statement to role {name}: {error}",
        " ".join(statements),
    )
