"""A target that stages rows in files; `finish` writes the rows of the receipts in one SQLite transaction."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from sqlite_target import SqliteTarget
from wal_sink.errors import TargetUnavailable
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.base import RowSlice, Session, StagedSession
from wal_sink.targets.sql.session import SqlSession


class StagingTarget(SqliteTarget):
    """A SQLite target with a folder of staged files."""

    parallel_writes = True

    @property
    def folder(self) -> Path:
        return Path(f"{self.options.path}.staged")

    def connect(self, query_id: str) -> Session:
        self.folder.mkdir(exist_ok=True)
        return StagingSession(self, query_id)


class StagingSession(StagedSession):
    """Stages each slice in a file, and returns the file's name as the receipt."""

    def __init__(self, target: StagingTarget, query_id: str) -> None:
        self.target = target
        self.sql = SqlSession(target, target._open(), query_id)
        self._pending: list[tuple[Plan, pa.RecordBatch]] = []

    def read(self) -> LedgerRow | None:
        return self.sql.read()

    def compare(self, plan: Plan) -> None:
        self.sql.compare(plan)

    def write(self, plan: Plan, rows: RowSlice) -> None:
        self.compare(plan)
        if rows.batch.num_rows:
            self._pending.append((plan, rows.batch))

    def drain(self) -> tuple[bytes, ...]:
        receipts = []
        for plan, batch in self._pending:
            path = self.target.folder / uuid.uuid4().hex
            metadata = {b"plan": plan.to_json()}
            with pa.ipc.new_file(path, batch.schema.with_metadata(metadata)) as writer:
                writer.write_batch(batch)
            receipts.append(path.name.encode())
        self._pending.clear()
        return tuple(receipts)

    def finish(
        self, current: LedgerRow | None, new: LedgerRow, receipts: Sequence[bytes] = ()
    ) -> Outcome:
        receipts = (*receipts, *self.drain())
        if self.sql.read() != current:
            return Outcome.CONFLICT
        self.add(receipts)
        return self.sql.finish(current, new)

    def add(self, receipts: Sequence[bytes]) -> None:
        """Write the rows of the receipts in the open transaction."""
        for receipt in receipts:
            path = self.target.folder / receipt.decode()
            if not path.exists():
                raise TargetUnavailable(f"{receipt!r} is gone", "Nothing: it is staged again.")
            reader = pa.ipc.open_file(path)
            plan = Plan.from_json(reader.schema.metadata[b"plan"], "plan")
            for number in range(reader.num_record_batches):
                self.sql.write(plan, RowSlice(0, reader.get_batch(number), 0))

    def discard(self, receipts: Sequence[bytes]) -> None:
        for receipt in receipts:
            (self.target.folder / receipt.decode()).unlink(missing_ok=True)

    def close(self) -> None:
        self.sql.close()
