"""Delta tables in folders, and what tests do with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from wal_sink.model.ledger import Outcome
from wal_sink.model.plan import Plan, plan_key
from wal_sink.options import parse
from wal_sink.targets.base import RowSlice
from wal_sink.targets.delta import DeltaTarget
from wal_sink.targets.delta.files import Files
from wal_sink.targets.delta.options import DeltaOptions
from wal_sink.targets.delta.session import DeltaSession
from wal_sink.targets.delta.table import Table
from wal_sink.testing.contracts.ledger import create, finish, following, new_query, row_of

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])


class Query:
    """A query with a target, and a session of its flusher."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.target = self.made()
        self.query_id = new_query()
        self.session = self.connect()
        create(self.session, self.query_id)

    def made(self) -> DeltaTarget:
        return DeltaTarget(parse({"delta.path": self.path}, DeltaOptions))

    def connect(self) -> DeltaSession:
        session = self.target.connect(self.query_id)
        assert isinstance(session, DeltaSession)
        return session

    def plan(self, schema: pa.Schema = SCHEMA) -> Plan:
        return self.target.plan(schema, plan_key(schema, "delta", self.target.shape))

    def slice(self, rows: pa.RecordBatch, plan: Plan) -> RowSlice:
        return RowSlice(0, self.target.check(rows, plan), 1)

    def stage(self, rows: pa.RecordBatch) -> tuple[bytes, ...]:
        """Stage rows of the next window."""
        plan = self.plan(rows.schema)
        self.session.write(plan, self.slice(rows, plan))
        return self.session.drain()

    def add(self, rows: pa.RecordBatch) -> None:
        """Bring rows into the table, as the next epoch."""
        current = row_of(self.session)
        outcome = finish(self.session, current, following(current), self.stage(rows))
        assert outcome is Outcome.APPLIED


def table_of(path: str) -> list[dict[str, Any]]:
    """Read a table as another client does."""
    to_pylist: list[dict[str, Any]] = DeltaTable(path).to_pyarrow_table().to_pylist()
    return to_pylist


def batch(rows: Sequence[tuple[str, int]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"k": k, "v": v} for k, v in rows], SCHEMA)


def conflict_after_commit(patch: pytest.MonkeyPatch, landed: Callable[[], object]) -> None:
    """Let the next commit land, and report what delta-rs does when it repeats a request and meets it."""
    real: Any = Table.commit

    def commit(self: Table, *arguments: Any) -> None:
        patch.setattr(Table, "commit", real)
        stale = Table(self.path, None, Files(self.path, None))
        real(self, *arguments)
        landed()
        real(stale, *arguments)

    patch.setattr(Table, "commit", commit)


@pytest.fixture
def query(tmp_path: Path) -> Query:
    """A query whose table has the columns of `SCHEMA`."""
    path = str(tmp_path / "t")
    DeltaTable.create(path, SCHEMA)
    return Query(path)
