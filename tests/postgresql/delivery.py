"""Brings rows into a table as the sink does: plan, check, and a window of a session."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from wal_sink.demo.servers.postgresql import Server
from wal_sink.model.plan import plan_key
from wal_sink.targets.base import RowSlice, Session
from wal_sink.targets.postgresql import PostgresqlOptions, PostgresqlTarget
from wal_sink.testing.contracts.ledger import create
from wal_sink.testing.contracts.rows import deliver


def target_of(server: Server, table: str, **options: object) -> PostgresqlTarget:
    """Return the target for a table."""
    return PostgresqlTarget(PostgresqlOptions(uri=server.uri, table=table, **options))  # type: ignore[arg-type]


@contextmanager
def new_query(target: PostgresqlTarget) -> Iterator[Session]:
    """Open the session of a query that the ledger does not know yet, and create its row."""
    query_id = uuid.uuid4().hex
    with target.connect(query_id) as session:
        create(session, query_id)
        yield session


def bring(target: PostgresqlTarget, *batches: pa.RecordBatch) -> None:
    """Bring batches of one schema into the table, as one window of a new query."""
    target.plan(batches[0].schema, "first")  # creates the ledger's table
    with new_query(target) as session:
        bring_over(session, target, batches)


def bring_over(
    session: Session, target: PostgresqlTarget, batches: Sequence[pa.RecordBatch]
) -> None:
    """Bring batches as the next window of a query."""
    schema = batches[0].schema
    plan = target.plan(schema, plan_key(schema, target.name, target.shape))
    deliver(session, plan, *(RowSlice(0, target.check(batch, plan), 0) for batch in batches))
