"""Agrees with the server on how a DataFrame is written."""

from __future__ import annotations

import logging
from typing import Any

import pyarrow as pa

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Plan
from wal_sink.targets.operations import operation_details, with_operation, without_operation
from wal_sink.targets.postgresql.catalogue import Relation, read_relation, read_server
from wal_sink.targets.postgresql.compare import (
    LEDGER_PRIVILEGES,
    grants,
    match_columns,
    needs_staging,
    privileges,
    refuse_table,
    refuse_unique,
    upsert_key,
    warnings,
)
from wal_sink.targets.postgresql.key import DETAIL, key_text
from wal_sink.targets.postgresql.options import PostgresqlOptions

log = logging.getLogger(__name__)


def make_plan(connection: Any, options: PostgresqlOptions, schema: pa.Schema, key: str) -> Plan:
    """Compare the DataFrame with the table, and see that the ledger's table can be used if it is there.

    :raises SchemaMismatch: the DataFrame does not fit, or the table cannot be written exactly once.
    :raises Exception: of the driver.
    """
    server = read_server(connection)
    upsert, operation = options.mode == "upsert", options.operation_column
    needed = privileges(upsert=upsert, deletes=bool(operation))
    live = read_relation(connection, options.data, needed)
    refuse_table(schema, live, server)
    written = without_operation(
        schema, operation, [column.name for column in live.columns], live.name
    )
    columns = match_columns(written, live)
    found = upsert_key(live, columns) if upsert else ()
    if not upsert:
        refuse_unique(live, columns)
    if needs_staging(columns, found):
        live = read_relation(connection, options.data, (*needed, "TEMPORARY"))
        refuse_table(schema, live, server)
    _refuse_ledger(read_relation(connection, options.ledger, LEDGER_PRIVILEGES), server.user)
    connection.rollback()
    for warning in warnings(live, server):
        log.warning("%s", warning)
    details = {DETAIL: key_text(found)} if found else {}
    return Plan(
        key=key,
        target="postgresql",
        table=str(options.data),
        columns=with_operation(columns, schema, operation),
        details=details | operation_details(operation, options.words),
    )


def _refuse_ledger(live: Relation, user: str) -> None:
    """Refuse a table for the ledger that exists and is of no use; one that is missing will be created.

    :raises SchemaMismatch: says why, and what to do.
    """
    if not live.exists:
        return
    if live.kind != "r" or live.persistence != "p":
        raise SchemaMismatch(
            f"{live.name} cannot be the ledger: it is not an ordinary table that survives a crash.",
            "Name another one in postgresql.ledgerTable; it is created if it is missing.",
        )
    if live.lacking:
        raise SchemaMismatch(
            f"User {user} lacks privileges for the ledger {live.name}: {', '.join(live.lacking)}.",
            f"Run as the owner: {' '.join(grants(live, user))}",
        )
