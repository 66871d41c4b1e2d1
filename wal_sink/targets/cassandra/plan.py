"""Agree with the cluster on how a DataFrame is written; the only step that may create anything."""

from __future__ import annotations

import logging
from typing import Any

import pyarrow as pa
from cassandra import DriverException
from cassandra.cluster import NoHostAvailable

from wal_sink.errors import TargetRefused, TargetUnavailable
from wal_sink.targets.base import Plan
from wal_sink.targets.cassandra.classify import classify
from wal_sink.targets.cassandra.compare import agree
from wal_sink.targets.cassandra.connection import connect
from wal_sink.targets.cassandra.driver_internals import ConnectionException, ErrorMessage
from wal_sink.targets.cassandra.ledger_table import ensure_ledger_table
from wal_sink.targets.cassandra.live import LiveTable, read_table
from wal_sink.targets.cassandra.names import qualified
from wal_sink.targets.cassandra.options import CassandraOptions

log = logging.getLogger(__name__)


def make_plan(options: CassandraOptions, schema: pa.Schema, key: str) -> Plan:
    """Connect, compare the DataFrame with the table, see to the ledger's table.

    :raises SchemaMismatch: the DataFrame does not fit, or the table cannot be written exactly once.
    :raises TargetUnavailable: the cluster does not answer.
    :raises TargetRefused: the cluster refuses a statement that this takes.
    :raises OptionError: the options do not fit the cluster.
    """
    with connect(options) as connection:
        try:
            return _agreed(connection.session, options, schema, key)
        except (DriverException, ConnectionException, ErrorMessage, NoHostAvailable) as error:
            if classify(error) == "fatal":
                raise TargetRefused(
                    f"The cluster refused to show or create what is needed: {error}",
                    f"See that the role {options.username or '(no login)'} may read system_schema "
                    f"and {qualified(*options.data)}.",
                ) from error
            raise TargetUnavailable(
                f"Cassandra at {options.contact_points} stopped answering: {error}",
                "See to the cluster and start again.",
            ) from error


def _agreed(session: Any, options: CassandraOptions, schema: pa.Schema, key: str) -> Plan:
    live = read_table(session, options.data)
    columns = agree(schema, live)
    ensure_ledger_table(session, options.ledger)
    _warn(options, live)
    return Plan(
        key=key,
        target="cassandra",
        table=qualified(*options.data),
        columns=columns,
        details={
            "keyspace": options.keyspace,
            "table": options.table,
            "nulls": options.nulls,
        },
    )


def _warn(options: CassandraOptions, live: LiveTable) -> None:
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
            qualified(*live.name),
            live.default_ttl,
        )
