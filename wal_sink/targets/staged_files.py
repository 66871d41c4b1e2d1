"""Sessions whose rows wait in Parquet files that no version of a table names, until a commit adds them.

The targets on table formats have in common: rows wait in memory and become files under receipts; the table
as it was read last; and the commit, which is tried again where other writers were quicker. A commit names
its conditions: the ledger row that was read, and the table's shape for which the files were written.
"""

from __future__ import annotations

import logging
import os
import random
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Generic, Protocol, Self, TypeVar

import msgspec
import pyarrow as pa

from wal_sink.errors import TargetUnavailable
from wal_sink.model.ledger import Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.base import ErrorClass, RowSlice, StagedSession
from wal_sink.targets.client import shortly

logger = logging.getLogger(__name__)

MOST_WAITING_BYTES = 128 * 1024 * 1024
"""Of Arrow; then they are written, a file for each partition."""
_BATCH_BYTES = 4_096
"""What a batch takes in memory beside its values."""
_TRIES = 8
"""How often a commit goes around those of other writers; then the flush tries it again."""
_PAUSE_S = 0.05
"""Before the second try, at most; twice as long before each one after it."""
_CHANCE = random.SystemRandom()


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file that no version of the table names yet."""

    path: str
    rows: int
    table: str
    """What the table was when the file was written: see `LookedAt.fingerprint`."""

    def to_bytes(self) -> bytes:
        """Encode for the way from a task to the flusher."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode what `to_bytes` has encoded."""
        return msgspec.msgpack.decode(data, type=cls)


class Files(Protocol):
    """The files of a table."""

    def sync(self, paths: Iterable[str]) -> None:
        """Make files durable."""

    def delete(self, path: str) -> None:
        """Delete a file that may be gone already."""

    def missing(self, paths: Iterable[str]) -> list[str]:
        """Return those of the files that are not there."""


class LookedAt(Protocol):
    """A table as it was looked at."""

    @property
    def files(self) -> Files:
        """Its files."""

    @property
    def fingerprint(self) -> str:
        """What shapes the table's files: a file is right for this alone."""

    def refresh(self) -> None:
        """Look at the newest version."""


R = TypeVar("R", bound=Receipt)
T = TypeVar("T", bound=LookedAt)


class Stage(ABC, Generic[R]):
    """Rows of one plan wait in memory. A file is opened, written and closed at once."""

    def __init__(self, files: Files) -> None:
        self._of_table = files
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._begun: list[str] = []
        """Paths of files whose receipts were not returned, those that could not be written included."""
        self._done: list[R] = []

    def add(self, rows: RowSlice) -> None:
        """Take rows; a bounded number of them waits in memory."""
        batch = self._staged(rows)
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes + _BATCH_BYTES
        if self._waiting_bytes > MOST_WAITING_BYTES:
            self._end()

    def drain(self) -> list[R]:
        """Write all rows; return the files' receipts when they are durable.

        :raises FileNotFoundError: one is gone. The others have no receipts.
        """
        self._end()
        self._of_table.sync(receipt.path for receipt in self._done)
        done, self._done, self._begun = self._done, [], []
        return done

    def abandon(self) -> None:
        """Delete what is staged and has no receipt, as far as that is possible."""
        paths, self._begun = self._begun, []
        self._waiting, self._waiting_bytes, self._done = [], 0, []
        for path in paths:
            try:
                self._of_table.delete(path)
            except OSError as error:
                what = "the unused file %s could not be deleted, and no reader reads it: %r"
                logger.info(what, path, error)

    def _end(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if waiting:
            self._done += self._write(pa.Table.from_batches(waiting))

    def _staged(self, rows: RowSlice) -> pa.RecordBatch:
        """Return rows as they are staged."""
        return rows.batch

    @abstractmethod
    def _write(self, rows: pa.Table) -> Iterator[R]:
        """Write files, at least one for each partition; note the path of each in `_begun` before."""


class StagedFileSession(StagedSession, Generic[T, R]):
    """The flusher's, or a task's, which only stages.

    :param kind: says what an error means.
    :param is_conflict: whether an error says that a commit met others in the table's log. It may be its own,
        whose answer was lost on the way.
    """

    receipt_type: type[R]
    """Set on the class."""
    may_land_late: ClassVar[bool]
    """Whether a commit that was called a conflict, and is not in the log, may get there yet; set on the
    class."""
    spare: ClassVar[str]
    """What to do where staged files vanish; set on the class."""

    def __init__(
        self, kind: Callable[[Exception], ErrorClass], is_conflict: Callable[[Exception], bool]
    ) -> None:
        self._kind, self._is_conflict = kind, is_conflict
        self._looked: T | None = None
        self._stages: dict[str, Stage[R]] = {}
        """By the keys of the plans; empty after each `drain`: the next share reads the table again."""

    @abstractmethod
    def _opened(self) -> T:
        """Look at the table for the first time."""

    @abstractmethod
    def _compared(self, plan: Plan) -> Stage[R]:
        """Compare a plan with the table's newest version; return what stages rows for that version.

        :raises OptionError: the plan is for another table than the options.
        :raises SchemaMismatch: the table is no longer what the plan says.
        """

    # --- rows -------------------------------------------------------------------------------------

    def write(self, plan: Plan, rows: RowSlice) -> None:
        """Stage rows in Parquet files.

        :raises OptionError, SchemaMismatch: the table is not the plan's, or no longer as it says.
        """
        stage = self._stages.get(plan.key)
        if stage is None:
            stage = self._stages[plan.key] = self._compared(plan)
        if rows.batch.num_rows:
            stage.add(rows)

    def compare(self, plan: Plan) -> None:
        """Read the table's newest version."""
        self._compared(plan)

    def drain(self) -> tuple[bytes, ...]:
        """Write the files; return the receipts of all.

        :raises TargetUnavailable: one is gone.
        """
        try:
            receipts = [receipt for stage in self._stages.values() for receipt in stage.drain()]
        except FileNotFoundError as error:
            raise self._gone(f"A staged file is gone: {error.filename}") from error
        self._stages.clear()
        return tuple(receipt.to_bytes() for receipt in receipts)

    def discard(self, receipts: Sequence[bytes]) -> None:
        """Delete the files."""
        files = self._refreshed().files
        for receipt in self._decoded(receipts):
            files.delete(receipt.path)

    def close(self) -> None:
        """Forget what is staged without a receipt. Idempotent."""
        self._abandon()
        self._looked = None

    def _staged(self, receipts: Sequence[bytes]) -> list[R]:
        """Return what this session has staged, and what others have, by their receipts."""
        return self._decoded([*receipts, *self.drain()])

    def _decoded(self, receipts: Sequence[bytes]) -> list[R]:
        return [self.receipt_type.from_bytes(receipt) for receipt in receipts]

    def _abandon(self) -> None:
        for stage in self._stages.values():
            stage.abandon()
        self._stages.clear()

    # --- the table --------------------------------------------------------------------------------

    def _refreshed(self) -> T:
        """Return the table at its newest version."""
        if self._looked is None:
            self._looked = self._opened()
        else:
            try:
                self._looked.refresh()
            except BaseException:
                self._looked = None
                raise
        return self._looked

    def _table(self) -> T:
        """Return the table as it was looked at last."""
        assert self._looked is not None
        return self._looked

    def _refuse_gone(self, staged: Sequence[R], epoch: int) -> None:
        """Check that the files that are staged for a window are there.

        :param epoch: the last one of the window.
        :raises TargetUnavailable: one is not.
        """
        if staged and (gone := self._table().files.missing(receipt.path for receipt in staged)):
            raise self._gone(f"{gone[0]}, staged for epoch {epoch}, is gone")

    def _gone(self, what: str) -> TargetUnavailable:
        return TargetUnavailable(what, f"{self.spare} All rows are staged again.")

    def _are_of_now(self, staged: Sequence[R]) -> bool:
        """Return True if files are right for the table as it was read last."""
        shape = self._table().fingerprint
        return all(receipt.table == shape for receipt in staged)

    def _try_commit(
        self,
        staged: Sequence[R],
        ask: Callable[[], None],
        met: Callable[[], Outcome | None],
    ) -> Outcome:
        """Ask for a commit until it is one, or cannot be.

        :param ask: for it, once, on the version of the table from which the ledger row was read.
        :param met: reads the table again; returns what became of a commit that was called a conflict. None:
            it may be asked for again, on this version.
        :raises Exception: of the table's client, which would come again.
        """
        outcome = Outcome.CONFLICT
        for number in range(_TRIES):
            if not self._are_of_now(staged):
                return outcome
            try:
                ask()
            except Exception as error:
                if not self._is_conflict(error):
                    if self._kind(error) == "fatal":
                        raise
                    # The request may still be under way: what it names stays.
                    self._looked = None
                    logger.warning("the answer to a commit is lost: %s", shortly(error))
                    return Outcome.UNKNOWN
                logger.info("another writer committed at the same time: %s", shortly(error))
            else:
                return Outcome.APPLIED
            time.sleep(_PAUSE_S * 2**number * _CHANCE.random())
            if (became := met()) is not None:
                return became
            if self.may_land_late:
                outcome = Outcome.UNKNOWN
        logger.warning("other writers of the table were quicker %d times", _TRIES)
        return outcome


class _As:
    """A batch under another schema of the same layout."""

    def __init__(self, schema: pa.Schema, batch: pa.RecordBatch) -> None:
        self._schema = schema
        self._batch = batch

    def __arrow_c_array__(self, _: object = None) -> tuple[object, object]:
        return self._schema.__arrow_c_schema__(), self._batch.__arrow_c_array__()[1]


def renamed(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """Return batches under other names, nullability and metadata of columns and their parts.

    Arrow's own cast takes a null struct for one with nulls inside, which a part may not take.

    :param schema: of the same layout.
    """
    return pa.Table.from_batches([pa.record_batch(_As(schema, batch)) for batch in batches], schema)


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_REFUSES = re.compile(
    r"(?<![\w/'%=.-])"
    r"(Permission ?[Dd]enied|PERMISSION_DENIED|Access ?Denied|ACCESS_DENIED"
    r"|Unauthenticated|UNAUTHENTICATED|Forbidden|FORBIDDEN|NoSuchBucket|NO_SUCH_BUCKET)"
    r"(?![\w/'%=-]|\.\w)"
)
"""As stores and their clients write it, and no part of a key or a URL that they quote."""


def kind_of_access(error: OSError) -> ErrorClass:
    """Tell a store that refuses from one that does not answer: delta-rs and Arrow have one class for both."""
    refuses = isinstance(error, PermissionError) or _REFUSES.search(str(error))
    return "fatal" if refuses else "retry"
