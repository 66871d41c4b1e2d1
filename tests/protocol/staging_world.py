"""A query whose target stages rows in files, and adds those of its receipts in SQLite's one transaction."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from tests.protocol.adding_world import AddingWorld, RefusingTarget

from sqlite_target import SqliteOptions
from wal_sink.errors import TargetUnavailable
from wal_sink.model.ledger import LedgerState, Outcome, Owner, Window
from wal_sink.model.plan import Plan
from wal_sink.targets.base import Delivery, Session, Slice, StagedSession
from wal_sink.targets.sql.session import SqlSession


class StagingTarget(RefusingTarget):
    """SQLite, with a folder of staged files beside the table's file."""

    delivery = Delivery.STAGED
    parallel_writes = True

    @property
    def folder(self) -> Path:
        return Path(f"{self.options.path}.staged")

    def connect(self, owner: Owner) -> Session:
        self.folder.mkdir(exist_ok=True)
        return StagingSession(self, owner)


class StagingSession(StagedSession):
    """Stages each `drain` in a file, whose name is the receipt; adds them in a transaction of SQLite."""

    def __init__(self, target: StagingTarget, owner: Owner) -> None:
        self.target = target
        self.sql = SqlSession(target, target._open(), owner)
        self._waiting: list[tuple[Plan, pa.RecordBatch]] = []

    def read_ledger(self) -> LedgerState | None:
        return self.sql.read_ledger()

    def start(self, window: Window) -> None:
        self._waiting.clear()

    def compare(self, plan: Plan) -> None:
        self.sql.compare(plan)

    def write(self, plan: Plan, rows: Slice) -> None:
        self.compare(plan)
        if rows.batch.num_rows:
            self._waiting.append((plan, rows.batch))

    def drain(self) -> tuple[bytes, ...]:
        receipts = []
        for plan, batch in self._waiting:
            path = self.target.folder / uuid.uuid4().hex
            metadata = {b"plan": plan.to_json()}
            with pa.ipc.new_file(path, batch.schema.with_metadata(metadata)) as writer:
                writer.write_batch(batch)
            receipts.append(path.name.encode())
        self._waiting.clear()
        return tuple(receipts)

    def commit(
        self, seen: LedgerState | None, new: LedgerState, receipts: Sequence[bytes]
    ) -> Outcome:
        if not receipts:
            return self.sql.compare_and_set(seen, new)
        assert seen is not None
        assert seen.begun is not None
        self.sql.start(seen.begun)
        self.add(receipts)
        return self.sql.commit(seen, new)

    def add(self, receipts: Sequence[bytes]) -> None:
        """Write what is staged in the open transaction."""
        for receipt in receipts:
            path = self.target.folder / receipt.decode()
            if not path.exists():
                raise TargetUnavailable(f"{receipt!r} is gone", "Nothing: it is staged again.")
            reader = pa.ipc.open_file(path)
            plan = Plan.from_json(reader.schema.metadata[b"plan"], "plan")
            for number in range(reader.num_record_batches):
                self.sql.write(plan, Slice(0, reader.get_batch(number), 0))

    def discard(self, receipts: Sequence[bytes]) -> None:
        for receipt in receipts:
            (self.target.folder / receipt.decode()).unlink(missing_ok=True)

    def close(self) -> None:
        self.sql.close()


class StagingWorld(AddingWorld):
    """Checkpoint and log in memory, table and staged rows in files.

    :param folder: of the table's file.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.target = StagingTarget(SqliteOptions(path=str(self.path), table="t"))

    def staged(self) -> list[str]:
        """Return the names of the staged files, those that are committed as well."""
        folder = Path(f"{self.path}.staged")
        return sorted(path.name for path in folder.glob("*"))
