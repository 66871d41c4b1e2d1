"""Agree with the cluster on how a DataFrame is written; the only step that may create anything."""

from __future__ import annotations

import logging
from typing import Any

import pyarrow as pa

from wal_sink.model.plan import Plan
from wal_sink.targets.cassandra.driver.connection import connect, explained
from wal_sink.targets.cassandra.names import qualified
from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.targets.cassandra.schema.compare import agree, types_of
from wal_sink.targets.cassandra.schema.ledger_table import ensure_ledger_table
from wal_sink.targets.cassandra.schema.live_table import LiveTable, read_table
from wal_sink.targets.cassandra.types.cql_type import written

log = logging.getLogger(__name__)


def make_plan(options: CassandraOptions, schema: pa.Schema, key: str) -> Plan:
    """Connect, compare the DataFrame with the table, see to the ledger's table.

    :raises SchemaMismatch: the DataFrame does not fit, or the table cannot be written exactly once.
    :raises TargetUnavailable: the cluster does not answer.
    :raises TargetRefused: the cluster refuses a statement that this takes.
    :raises OptionError: the options do not fit the cluster.
    """
    with connect(options) as connection, explained(options):
        return _agreed(connection.session, options, schema, key)


def _agreed(session: Any, options: CassandraOptions, schema: pa.Schema, key: str) -> Plan:
    live = read_table(session, options.data)
    columns = agree(schema, live)
    types = types_of(columns, live)
    ensure_ledger_table(session, options.ledger)
    _say(options, live)
    return Plan(
        key=key,
        target="cassandra",
        table=qualified(*options.data),
        columns=columns,
        details={
            "keyspace": options.keyspace,
            "table": options.table,
            "nulls": options.nulls,
        }
        | ({"types": written(types)} if types else {}),
    )


def _say(options: CassandraOptions, live: LiveTable) -> None:
    table = qualified(*live.name)
    if options.nulls == "unset":
        log.info("%s: a null leaves the older value of its cell (cassandra.nulls = unset)", table)
    else:
        log.info("%s: a null clears its cell, a tombstone (cassandra.nulls = write)", table)
    if options.consistency_level in ("ONE", "LOCAL_ONE"):
        log.warning(
            "cassandra.consistencyLevel is %s: a row counts as written when one replica has it, and "
            "is lost with that replica",
            options.consistency_level,
        )
    if live.default_ttl:
        log.warning(
            "%s has default_time_to_live = %d: a row that is written again after a crash lives that "
            "long from then on",
            table,
            live.default_ttl,
        )
