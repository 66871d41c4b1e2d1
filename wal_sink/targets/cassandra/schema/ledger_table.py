"""See that the ledger's table is there and is ours."""

from __future__ import annotations

from typing import Any

from cassandra import Unauthorized

from wal_sink.errors import SchemaMismatch, TargetUnavailable
from wal_sink.targets.cassandra.names import qualified
from wal_sink.targets.cassandra.options import TableName
from wal_sink.targets.cassandra.schema import ddl
from wal_sink.targets.cassandra.schema.compare import refuse_not_durable
from wal_sink.targets.cassandra.schema.live_table import LiveTable, read_table


def ensure_ledger_table(session: Any, name: TableName) -> None:
    """Create the table unless it is there.

    :param session: the driver's session.
    :raises SchemaMismatch: it may not be created, or a table of that name has other columns.
    :raises TargetUnavailable: created, but the nodes do not agree on it yet.
    """
    live = read_table(session, name)
    if name.keyspace not in live.keyspaces:
        raise SchemaMismatch(
            f"Keyspace {name.keyspace} of cassandra.ledgerTable does not exist.",
            f"Correct the option, or create it:\n{ddl.create_keyspace(name.keyspace)}",
        )
    if not live.exists:
        _create(session, name)
        live = read_table(session, name)
    refuse_other_ledger(live)


def refuse_other_ledger(live: LiveTable) -> None:
    """See that the ledger can be kept in the table.

    :raises SchemaMismatch: it cannot.
    """
    refuse_not_durable(live)
    table = qualified(*live.name)
    if not live.exists:
        raise SchemaMismatch(
            f"The ledger table {table} does not exist. It holds how far each query is flushed.",
            "If it was dropped, restore it from a backup. For the first query, create it:\n"
            f"{ddl.create_ledger(live.name)};",
        )
    columns = {column.name: column.type for column in live.columns}
    key = [column.name for column in live.columns if column.role in ("partition", "clustering")]
    if key != ["query_id"] or not ddl.LEDGER_COLUMNS.items() <= columns.items():
        raise SchemaMismatch(
            f"{table} is not a ledger of wal_sink: it has the columns "
            f"{', '.join(f'{name} {cql}' for name, cql in columns.items())}.",
            "Name another table in cassandra.ledgerTable. A ledger is created by\n"
            f"{ddl.create_ledger(live.name)};",
        )


def _create(session: Any, name: TableName) -> None:
    create = ddl.create_ledger(name)
    try:
        result = session.execute(create)
    except Unauthorized as error:
        raise SchemaMismatch(
            f"The ledger table {qualified(*name)} does not exist, and this role may not create it: "
            f"{error}",
            f"Have it created:\n{create};",
        ) from error
    if not result.response_future.is_schema_agreed:
        raise TargetUnavailable(
            f"The nodes do not agree yet that {qualified(*name)} was created.",
            "See that all nodes are up (nodetool describecluster), and start again.",
        )
