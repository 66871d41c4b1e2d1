"""Sessions whose rows wait in Parquet files that no version of a table names, until a commit adds them.

The targets on table formats have in common: rows wait in memory and become files under receipts; the table
as it was read last; and the commit, which is repeated if other writers were quicker. A commit names its
conditions: the ledger row that was read, and the table's shape for which the files were written.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import random
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from wal_sink.errors import TargetUnavailable
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.arrow_tables import completed
from wal_sink.targets.base import ErrorClass, RowSlice, StagedSession
from wal_sink.targets.client import shortly

logger = logging.getLogger(__name__)

MOST_WAITING_BYTES = 128 * 1024 * 1024
"""Most bytes of rows in memory; then they are written, a file for each partition."""
_BATCH_BYTES = 4_096
"""Bytes of memory that a batch takes beside its values."""
_TRIES = 8
"""Most tries of a commit beside those of other writers; then the flush tries it again."""
_PAUSE_S = 0.05
"""The longest pause before the second try; it doubles before each one after that."""
_CHANCE = random.SystemRandom()


class Receipt(NamedTuple):
    """A Parquet file that no version of the table names yet."""

    path: str
    table: str
    """The table's `StagedTable.fingerprint` when the file was written."""
    entry: Any
    """The entry of a commit for the file, in the type of the table's client."""
    merged: bool = False
    """True if a commit reads the file's rows and merges them; it does not add the file."""


class RowVersion(NamedTuple):
    """The ledger row, and the id of its version: no two changes of the row have the same one."""

    id: int | None
    row: LedgerRow | None
    """None: there is none, or its rows are not in the table any more."""


class Files(Protocol):
    """The files of a table."""

    def sync(self, paths: Iterable[str]) -> None:
        """Make files durable."""

    def delete(self, path: str) -> None:
        """Delete a file that may be gone already."""

    def missing(self, paths: Iterable[str]) -> list[str]:
        """Return those of the files that are not there."""


class StagedTable(Protocol):
    """A table at the version that was read last."""

    @property
    def files(self) -> Files:
        """Its files."""

    @property
    def types(self) -> pa.Schema:
        """Its columns, by types of Arrow; a null type stands for one that is not written."""

    @property
    def fingerprint(self) -> str:
        """A digest of all that shapes the table's files: a file fits a table with this one alone."""

    def refresh(self) -> None:
        """Read the newest version."""

    def sync(self) -> None:
        """Make this version survive a power loss."""


T = TypeVar("T", bound=StagedTable)


class Stage(ABC):
    """Rows of one plan wait in memory. A file is opened, written and closed at once.

    :param table: the files fit this version of its columns and partitions.
    """

    def __init__(self, table: StagedTable) -> None:
        self._of_table = table.files
        self._types = table.types
        self._fingerprint = table.fingerprint
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._begun: list[str] = []
        """Paths of files whose receipts were not returned, those that could not be written included."""
        self._done: list[Receipt] = []

    def add(self, rows: RowSlice) -> None:
        """Take rows; a bounded number of them waits in memory."""
        batch = self._staged(rows)
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes + _BATCH_BYTES
        if self._waiting_bytes > MOST_WAITING_BYTES:
            self._end()

    def drain(self) -> list[Receipt]:
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
            self._done += self._write(completed(pa.Table.from_batches(waiting), self._types))

    def _staged(self, rows: RowSlice) -> pa.RecordBatch:
        """Return rows as they are staged."""
        return rows.batch

    @abstractmethod
    def _write(self, rows: pa.Table) -> Iterator[Receipt]:
        """Write files, at least one for each partition; note the path of each in `_begun` before."""


class StagedFileSession(StagedSession, Generic[T]):
    """The flusher's session, or that of a task, which only stages.

    :param classify: says what an error means.
    :param is_conflict: whether an error says that a commit met others in the table's log. It may be its own,
        whose answer was lost on the way.
    """

    spare: ClassVar[str]
    """The remedy where staged files vanish; set on the class."""

    def __init__(
        self, classify: Callable[[Exception], ErrorClass], is_conflict: Callable[[Exception], bool]
    ) -> None:
        self._classify, self._is_conflict = classify, is_conflict
        self._table_read: T | None = None
        self._stages: dict[str, Stage] = {}
        """The stages by the plans' keys; empty after each `drain`: the next share reads the table again."""

    @abstractmethod
    def _opened(self) -> T:
        """Read the table for the first time."""

    @abstractmethod
    def _compared(self, plan: Plan) -> Stage:
        """Compare a plan with the table's newest version; return what stages rows for that version.

        :raises OptionError: the plan is for another table than the options.
        :raises SchemaMismatch: the table is no longer what the plan says.
        """

    @abstractmethod
    def _row(self) -> RowVersion:
        """Read the table's newest version, and the ledger row in it."""

    @abstractmethod
    def _commit(
        self, former: RowVersion, new: LedgerRow, staged: Sequence[Receipt]
    ) -> tuple[int, Callable[[], None]]:
        """Return the id of the row's next version, and a function that asks once for the commit.

        The commit adds the files and replaces `former`, on the version of the table in which that was read.

        :raises Exception: any error at which nothing is committed.
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
        return tuple(map(pickle.dumps, receipts))

    def discard(self, receipts: Sequence[bytes]) -> None:
        """Delete the files."""
        files = self._refreshed().files
        for receipt in map(_receipt, receipts):
            files.delete(receipt.path)

    def close(self) -> None:
        """Forget what is staged without a receipt. Idempotent."""
        for stage in self._stages.values():
            stage.abandon()
        self._stages.clear()
        self._table_read = None

    # --- the ledger row ---------------------------------------------------------------------------

    def read(self) -> LedgerRow | None:
        """Read the row of the table's newest version, and make that version durable."""
        row = self._row().row
        self._table().sync()
        return row

    def finish(
        self, expected: LedgerRow | None, new: LedgerRow, receipts: Sequence[bytes] = ()
    ) -> Outcome:
        """Commit files and row, if that is the one that was read and the table's shape is the same.

        :raises SchemaMismatch: no file may be added.
        :raises TargetUnavailable: a staged file is gone.
        """
        staged = [_receipt(data) for data in (*receipts, *self.drain())]
        former = self._row()
        if former.row != expected or not self._fits(staged):
            return Outcome.CONFLICT
        if staged and (gone := self._table().files.missing(receipt.path for receipt in staged)):
            raise self._gone(f"{gone[0]}, staged for epoch {new.epoch}, is gone")
        version, ask = self._commit(former, new, staged)
        for number in range(_TRIES):
            try:
                ask()
            except Exception as error:
                if not self._is_conflict(error):
                    if self._classify(error) == "fatal":
                        raise
                    self._table_read = None
                    logger.warning("the answer to a commit is lost: %s", shortly(error))
                    return Outcome.UNKNOWN
                logger.info("another writer committed at the same time: %s", shortly(error))
            else:
                return Outcome.APPLIED
            time.sleep(_PAUSE_S * 2**number * _CHANCE.random())
            now = self._row()
            if now.id == version:
                # The commit met itself: a client, or a proxy, has repeated the request.
                self._table().sync()
                return Outcome.APPLIED
            if now != former or not self._fits(staged):
                break
        # A request may be under way still, or have landed before another flusher moved the row: files stay.
        return Outcome.UNKNOWN

    # --- the table --------------------------------------------------------------------------------

    def _refreshed(self) -> T:
        """Return the table at its newest version."""
        if self._table_read is None:
            self._table_read = self._opened()
        else:
            try:
                self._table_read.refresh()
            except BaseException:
                self._table_read = None
                raise
        return self._table_read

    def _table(self) -> T:
        """Return the table as it was read last."""
        assert self._table_read is not None
        return self._table_read

    def _gone(self, what: str) -> TargetUnavailable:
        return TargetUnavailable(what, f"{self.spare} All rows are staged again.")

    def _fits(self, staged: Sequence[Receipt]) -> bool:
        """Return True if files are right for the table as it was read last."""
        shape = self._table().fingerprint
        return all(receipt.table == shape for receipt in staged)


def _receipt(data: bytes) -> Receipt:
    receipt: Receipt = pickle.loads(data)  # noqa: S301 -- of a task of ours, as all that Spark brings
    return receipt


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


_FOLDERS = 8
"""Folders above a file that are synced at most: those of partitions, the table's, and its catalog's."""


def sync(files: Iterable[Path], *, may_be_gone: bool = False) -> None:
    """Make files, and their names in the folders above, survive a power loss.

    :param may_be_gone: somebody may have deleted one since it was listed.
    :raises FileNotFoundError: one is gone.
    """
    folders = set[Path]()
    for file in files:
        try:
            _sync(file)
        except FileNotFoundError:
            if not may_be_gone:
                raise
        folders |= {*file.parents[:_FOLDERS]}
    for folder in folders:
        with contextlib.suppress(PermissionError):  # above what is ours
            _sync(folder)


def _sync(path: Path) -> None:
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
"""The words of stores and their clients, where they are no part of a key or a URL that is quoted."""


def kind_of_access(error: OSError) -> ErrorClass:
    """Tell a store that refuses from one that does not answer: delta-rs and Arrow have one class for both."""
    refuses = isinstance(error, PermissionError) or _REFUSES.search(str(error))
    return "fatal" if refuses else "retry"
