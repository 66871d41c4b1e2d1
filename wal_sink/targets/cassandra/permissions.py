"""Permissions that the sink's role needs: asked for when a query starts, and named where one is missing."""

from __future__ import annotations

import re
from typing import Any

from cassandra import InvalidRequest, Unauthorized

from wal_sink.errors import TargetRefused
from wal_sink.targets.cassandra.driver.internals import ServerError, SyntaxException
from wal_sink.targets.cassandra.options import CassandraOptions, login
from wal_sink.targets.cassandra.table import TableMetadata
from wal_sink.targets.sql_text import quote


def refuse_missing_permissions(
    session: Any, options: CassandraOptions, live: TableMetadata
) -> None:
    """Refuse a role that may not write rows, or not read and move the ledger.

    The statements take no rows, so nothing is read or written. A role need not be allowed to list its
    permissions, and permissions that other products have are found, too.

    :param session: the driver's session.
    :param live: the table; one that is missing is not asked about.
    :raises TargetRefused: names the permissions that are missing.
    """
    partition = [quote(column.name) for column in live.columns if column.role == "partition"]
    no_rows = " AND ".join(f"{name} IN ()" for name in partition)
    ledger = f"FROM {options.ledger} WHERE query_id IN ()"
    statements = [f"SELECT log_id, epoch, digest {ledger}", f"DELETE {ledger}"]
    if no_rows:
        statements.insert(0, f"DELETE FROM {live.name} WHERE {no_rows}")  # noqa: S608 -- quoted names
    errors = []
    for statement in statements:
        try:
            session.execute(statement)
        except Unauthorized as error:
            errors.append(error)
        except (InvalidRequest, SyntaxException):
            continue  # of a dry run, which makes no ledger; or of a server without `IN ()`
        except ServerError:
            continue  # allowed by then: a table that another start makes just now is an "Unknown CF"
    if errors:
        raise missing_permission(*errors, options=options) from errors[0]


_MISSING = re.compile(
    r"has no (?P<permission>\w+)(?: nor \w+)? permission on"
    r" (?:<table (?P<table>\S+)>|table (?P<masked>[^,\s]+)|<all tables in (?P<keyspace>\w+)>)"
)
"""How Cassandra 3.11 to 5.0 says it; of masked columns it names UNMASK first (`SelectStatement`)."""


def missing_permission(*errors: Unauthorized, options: CassandraOptions) -> TargetRefused:
    """Return the error that names the permissions that a role lacks, with the statements that grant them."""
    role = login(options)
    name = quote(role.username) if role else "the role"
    grants = [_grant(str(error), options, name) for error in errors]
    return TargetRefused(
        f"Cassandra at {options.where} refuses statements to role {name}: {'; '.join(map(str, errors))}",
        " ".join(dict.fromkeys(grants)),
    )


def _grant(error: str, options: CassandraOptions, role: str) -> str:
    missing = _MISSING.search(error)
    if missing is None:
        return (
            f"GRANT MODIFY ON TABLE {options.data} TO {role};"
            f" GRANT SELECT ON TABLE {options.ledger} TO {role};"
            f" GRANT MODIFY ON TABLE {options.ledger} TO {role};"
        )
    resource = f"KEYSPACE {quote(missing['keyspace'] or '')}"
    if table := missing["table"] or missing["masked"]:
        resource = f"TABLE {'.'.join(map(quote, table.split('.', 1)))}"
    return f"GRANT {missing['permission']} ON {resource} TO {role};"
