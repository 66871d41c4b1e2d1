"""Sessions that write rows to Parquet files.

No version of the table names these files until a commit adds them.

Targets for table formats share: rows in memory that become files with receipts; the version of the table that
was read last; and a commit that is repeated if another writer was faster. A commit has two conditions: the
ledger row is the one that was read, and the table has the shape for which the files were written.
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
"""The largest number of bytes of rows in memory. Above it the rows are written, to one file for each
partition."""
_BATCH_BYTES = 4_096
"""The memory of a batch beside its values, in bytes."""
_TRIES = 8
"""The largest number of tries of a commit beside other writers. After them the flusher writes the window
again."""
_PAUSE_S = 0.05
"""The longest pause before the second try, in seconds. It doubles before each later try."""
_CHANCE = random.SystemRandom()


class Receipt(NamedTuple):
    """A Parquet file that no version of the table names yet."""

    path: str
    table: str
    """The `StagedTable.fingerprint` of the table when the file was written."""
    entry: Any
    """The entry of a commit for the file, in the type of the table's client."""
    merged: bool = False
    """True if the commit merges the file's rows by their key. False if it adds the file."""


class RowVersion(NamedTuple):
    """The ledger row, and an id of its version. No two changes of the row have the same id."""

    id: int | None
    row: LedgerRow | None
    """None if there is no row, or if the table no longer has the rows that it counts."""


class Files(Protocol):
    """The files of a table."""

    def sync(self, paths: Iterable[str]) -> None:
        """Make files durable."""

    def delete(self, path: str) -> None:
        """Delete a file that may be missing."""

    def missing(self, paths: Iterable[str]) -> list[str]:
        """Return the paths whose files are missing."""


class StagedTable(Protocol):
    """A table, at the version that was read last."""

    @property
    def files(self) -> Files:
        """The files of the table."""

    @property
    def types(self) -> pa.Schema:
        """The columns as Arrow types. A null type means that wal_sink does not write the column."""

    @property
    def fingerprint(self) -> str:
        """A digest of everything that shapes the table's files.

        A file fits only a table with the same digest.
        """

    def refresh(self) -> None:
        """Read the newest version."""

    def sync(self) -> None:
        """Make this version survive a power loss."""


T = TypeVar("T", bound=StagedTable)


class Stage(ABC):
    """Rows of one plan in memory, and their files. A file is opened, written and closed at once.

    :param table: the version of the table whose columns and partitions the files fit.
    """

    def __init__(self, table: StagedTable) -> None:
        self._of_table = table.files
        self._types = table.types
        self._fingerprint = table.fingerprint
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._begun: list[str] = []
        """Paths of files without a returned receipt, including files that could not be written."""
        self._done: list[Receipt] = []

    def add(self, rows: RowSlice) -> None:
        """Keep rows in memory, or write them if there are too many."""
        batch = self._staged(rows)
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes + _BATCH_BYTES
        if self._waiting_bytes > MOST_WAITING_BYTES:
            self._end()

    def drain(self) -> list[Receipt]:
        """Write all rows, and return the receipts of the files when they are durable.

        :raises FileNotFoundError: a file was deleted before it was durable. No receipt is returned.
        """
        self._end()
        self._of_table.sync(receipt.path for receipt in self._done)
        done, self._done, self._begun = self._done, [], []
        return done

    def abandon(self) -> None:
        """Delete the rows and files without a receipt, as far as that is possible."""
        paths, self._begun = self._begun, []
        self._waiting, self._waiting_bytes, self._done = [], 0, []
        for path in paths:
            try:
                self._of_table.delete(path)
            except OSError as error:
                logger.info("the unused file %s could not be deleted: %r", path, error)

    def _end(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if waiting:
            self._done += self._write(completed(pa.Table.from_batches(waiting), self._types))

    def _staged(self, rows: RowSlice) -> pa.RecordBatch:
        """Return rows in the form of their files."""
        return rows.batch

    @abstractmethod
    def _write(self, rows: pa.Table) -> Iterator[Receipt]:
        """Write files, at least one for each partition.

        Append each path to `_begun` before the file is written.
        """


class StagedFileSession(StagedSession, Generic[T]):
    """The session of a flusher, or of a task, which only stages.

    :param classify: returns the class of an error.
    :param is_conflict: returns True if a commit was refused because of another commit. That may be the commit
        itself, if its answer was lost and the client repeated it.
    """

    spare: ClassVar[str]
    """The remedy if staged files vanish. Set it on the class."""

    def __init__(
        self, classify: Callable[[Exception], ErrorClass], is_conflict: Callable[[Exception], bool]
    ) -> None:
        self._classify, self._is_conflict = classify, is_conflict
        self._table_read: T | None = None
        self._stages: dict[str, Stage] = {}
        """The stages by the plans' keys. Empty after each `drain`, so the next slice reads the table
        again."""

    @abstractmethod
    def _opened(self) -> T:
        """Read the table for the first time."""

    @abstractmethod
    def _compared(self, plan: Plan) -> Stage:
        """Compare a plan with the table's newest version, and return a stage for that version.

        :raises OptionError: the plan is for another table than the options.
        :raises SchemaMismatch: the table no longer fits the plan.
        """

    @abstractmethod
    def _row(self) -> RowVersion:
        """Read the table's newest version, and the ledger row in it."""

    @abstractmethod
    def _commit(
        self, former: RowVersion, new: LedgerRow, staged: Sequence[Receipt]
    ) -> tuple[int, Callable[[], None]]:
        """Return the id of the row's next version, and a function that requests the commit once.

        The commit adds the files and replaces `former`, on the version of the table in which `former` was
        read.

        :raises Exception: nothing is committed.
        """

    # --- rows -------------------------------------------------------------------------------------

    def write(self, plan: Plan, rows: RowSlice) -> None:
        """Stage rows in Parquet files."""
        stage = self._stages.get(plan.key)
        if stage is None:
            stage = self._stages[plan.key] = self._compared(plan)
        if rows.batch.num_rows:
            stage.add(rows)

    def compare(self, plan: Plan) -> None:
        """Compare a plan with the table's newest version."""
        self._compared(plan)

    def drain(self) -> tuple[bytes, ...]:
        """Write the files, and return their receipts.

        :raises TargetUnavailable: a file is missing.
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
        """Delete the rows and files without a receipt. Idempotent."""
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
        """Commit files and row, if the row is `expected` and the table's shape is unchanged.

        :raises SchemaMismatch: the table takes no file.
        :raises TargetUnavailable: a staged file is missing.
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
                # The commit was refused because of itself: a client or proxy has repeated the request.
                self._table().sync()
                return Outcome.APPLIED
            if now != former or not self._fits(staged):
                break
        # The commit may still arrive, or it took effect before another flusher moved the row. So files stay.
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
        """Return the table at the version that was read last."""
        assert self._table_read is not None
        return self._table_read

    def _gone(self, what: str) -> TargetUnavailable:
        return TargetUnavailable(what, f"{self.spare} All rows of the window are staged again.")

    def _fits(self, staged: Sequence[Receipt]) -> bool:
        """Return True if the files fit the table at the version that was read last."""
        shape = self._table().fingerprint
        return all(receipt.table == shape for receipt in staged)


def _receipt(data: bytes) -> Receipt:
    receipt: Receipt = pickle.loads(data)  # noqa: S301 -- made by a task of the same job
    return receipt


_FOLDERS = 8
"""The largest number of folders above a file that are synced: partitions, the table and its catalog."""


def sync(files: Iterable[Path], *, may_be_gone: bool = False) -> None:
    """Make files, and their names in the folders above, survive a power loss.

    :param may_be_gone: True if somebody may have deleted a file since it was listed.
    :raises FileNotFoundError: a file is missing.
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
        with contextlib.suppress(PermissionError):  # a folder above the table's
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
"""The words by which stores and their clients refuse access. Not matched inside a quoted key or URL."""


def kind_of_access(error: OSError) -> ErrorClass:
    """Return "fatal" if a store refuses access, "retry" if it does not answer.

    delta-rs and Arrow raise OSError for both.
    """
    refuses = isinstance(error, PermissionError) or _REFUSES.search(str(error))
    return "fatal" if refuses else "retry"
