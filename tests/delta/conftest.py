"""Delta tables in folders, and queries that write to them."""

from __future__ import annotations

import json
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


def delta_target(path: object, **options: str) -> DeltaTarget:
    return DeltaTarget(parse({"delta.path": str(path), **options}, DeltaOptions))


class Query:
    """A query with a target, and a session of its flusher."""

    def __init__(self, path: object, **options: str) -> None:
        self.path = str(path)
        self.target = delta_target(path, **options)
        self.query_id = new_query()
        self.session = self.connect()
        create(self.session, self.query_id)

    def connect(self) -> DeltaSession:
        session = self.target.connect(self.query_id)
        assert isinstance(session, DeltaSession)
        return session

    def plan(self, schema: pa.Schema = SCHEMA) -> Plan:
        return self.target.plan(schema, plan_key(schema, "delta", self.target.shape))

    def check(self, rows: list[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
        """Check rows as a task does."""
        return self.target.check(pa.RecordBatch.from_pylist(rows, schema), self.plan(schema))

    def slice(self, rows: pa.RecordBatch, plan: Plan) -> RowSlice:
        return RowSlice(0, self.target.check(rows, plan), 1)

    def stage(self, rows: pa.RecordBatch) -> tuple[bytes, ...]:
        """Stage rows of the next window."""
        plan = self.plan(rows.schema)
        self.session.write(plan, self.slice(rows, plan))
        return self.session.drain()

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows to the table, as the next epoch."""
        current = row_of(self.session)
        outcome = finish(self.session, current, following(current), self.stage(rows))
        assert outcome is Outcome.APPLIED


class Upserting(Query):
    """A query that upserts by `k`."""

    def __init__(self, path: object, **options: str) -> None:
        super().__init__(path, **{"delta.mode": "upsert", "keyColumns": "k"} | options)


def with_protocol(
    path: Path,
    version: int,
    features: list[str],
    column: dict[str, Any] | None = None,
    partition_by: tuple[str, ...] = (),
) -> str:
    """Make a table with the columns of `SCHEMA` whose protocol requires features, as Spark makes it.

    :param column: a further column, as the log describes it.
    """
    schema = pa.schema([*SCHEMA, *((name, pa.string()) for name in partition_by)])
    DeltaTable.create(str(path), schema, partition_by=list(partition_by))
    log = path / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": version}
    if features:
        protocol["writerFeatures"] = features
        if of_readers := sorted(OF_READERS & {*features}):
            protocol |= {"minReaderVersion": 3, "readerFeatures": of_readers}
    for action in actions:
        if "protocol" in action:
            action["protocol"] = protocol
        if "metaData" in action and column is not None:
            described = json.loads(action["metaData"]["schemaString"])
            described["fields"].append(column)
            action["metaData"]["schemaString"] = json.dumps(described)
    log.write_text("\n".join(map(json.dumps, actions)))
    return str(path)


OF_READERS = {
    *("columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "v2Checkpoint"),
    *("vacuumProtocolCheck", "variantType", "variantType-preview"),
}


def table_of(path: str) -> list[dict[str, Any]]:
    """Read a table as another client does."""
    to_pylist: list[dict[str, Any]] = DeltaTable(path).to_pyarrow_table().to_pylist()
    return to_pylist


def batch(rows: Sequence[tuple[str, int]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"k": k, "v": v} for k, v in rows], SCHEMA)


def conflict_after_commit(patch: pytest.MonkeyPatch, landed: Callable[[], object]) -> None:
    """Let the next commit take effect, and then fail as if delta-rs had repeated the request."""
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
    """Start a query whose table has the columns of `SCHEMA`."""
    path = str(tmp_path / "t")
    DeltaTable.create(path, SCHEMA)
    return Query(path)
