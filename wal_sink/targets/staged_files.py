"""Sessions of targets for table formats, which write rows to Parquet files and then commit these files.

Rows are collected in memory and written to files that no version of the table names yet. A commit adds the
files to the table together with the ledger row. The commit has two conditions. The ledger row is unchanged
since it was read. The table has the same schema, partitions and properties as when the files were written. If
another writer commits at the same time, the commit is tried again.
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

import msgspec
import pyarrow as pa

from wal_sink.errors import CorruptLog, TargetUnavailable
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.arrow_columns import completed
from wal_sink.targets.base import ErrorClass, RowSlice, StagedSession
from wal_sink.targets.client import shortly

logger = logging.getLogger(__name__)

MOST_WAITING_BYTES = 128 * 1024 * 1024
"""The most bytes of rows in memory. If there are more, the rows are written to a file for each partition."""
_BATCH_BYTES = 4_096
"""The bytes that a batch takes in memory beside its values."""
_TRIES = 8
"""The most tries of a commit while other writers commit. Then the flusher writes the window again."""
_PAUSE_S = 0.05
"""The longest pause before the second try of a commit, in seconds. The pause doubles for each later try."""
_CHANCE = random.SystemRandom()


class Receipt(NamedTuple):
    """A Parquet file that no version of the table names yet."""

    path: str
    table: str
    """The `StagedTable.fingerprint` of the table when the file was written."""
    entry: Any
    """What a commit adds for the file, as an object of the table's client."""


class RowVersion(NamedTuple):
    """The ledger row, and the id of its version. Each change of the row has a new id."""

    id: int | None
    row: LedgerRow | None
    """None if there is no row, or if the table no longer has the rows that the ledger row counts."""


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
        """The types of the columns. A null type stands for a type that wal_sink does not write."""

    @property
    def fingerprint(self) -> str:
        """A text that identifies the schema, partitions and properties of the table.

        A commit adds a file only if the table has the same fingerprint as when the file was written.
        """

    def refresh(self) -> None:
        """Read the newest version."""


T = TypeVar("T", bound=StagedTable)


class Stage(ABC):
    """Collects the rows of one plan in memory, and writes them to files for one version of the table."""

    def __init__(self, table: StagedTable) -> None:
        self._of_table = table.files
        self._types = table.types
        self._fingerprint = table.fingerprint
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._begun: list[str] = []
        """The paths of files whose receipts are not returned yet, including files with a failed write."""
        self._done: list[Receipt] = []

    def add(self, rows: RowSlice) -> None:
        """Collect rows. If all collected rows exceed `MOST_WAITING_BYTES`, write them to files."""
        batch = self._staged(rows)
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes + _BATCH_BYTES
        if self._waiting_bytes > MOST_WAITING_BYTES:
            self._end()

    def drain(self) -> list[Receipt]:
        """Write all rows to files, make the files durable, and return their receipts.

        :raises FileNotFoundError: somebody has deleted a file.
        """
        self._end()
        self._of_table.sync(receipt.path for receipt in self._done)
        done, self._done, self._begun = self._done, [], []
        return done

    def abandon(self) -> None:
        """Discard the rows in memory, and try to delete the files whose receipts are not returned yet."""
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
        """Return rows with the columns that their file gets."""
        return rows.batch

    @abstractmethod
    def _write(self, rows: pa.Table) -> Iterator[Receipt]:
        """Write at least one file for each partition, after its path is appended to `_begun`."""


class StagedFileSession(StagedSession, Generic[T]):
    """The session of a flusher or a task. Only a flusher commits; a task stages files.

    :param classify: returns the class of an error.
    :param is_conflict: returns True if an error says that a commit conflicts with another commit. If the
        answer to a commit was lost and the client repeats the request, the commit conflicts with itself.
    """

    missing_files_remedy: ClassVar[str]
    """The remedy if staged files are missing, such as a longer retention of a clean-up."""

    def __init__(
        self, classify: Callable[[Exception], ErrorClass], is_conflict: Callable[[Exception], bool]
    ) -> None:
        self._classify, self._is_conflict = classify, is_conflict
        self._table_read: T | None = None
        self._stages: dict[str, Stage] = {}
        """The stages, by the keys of their plans. `drain` removes all stages, so the next `write` reads the
        table again."""

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
        """Read the table's newest version, and return the ledger row in it. The version is durable."""

    @abstractmethod
    def _commit(
        self, former: RowVersion, new: LedgerRow, staged: Sequence[Receipt]
    ) -> tuple[int, Callable[[], None]]:
        """Prepare a commit that adds the staged files and replaces the ledger row.

        :param former: the row that the table has at the version that was read last.
        :returns: the id of the row's new version, and a function that requests the commit once.
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
        """Write the rows in memory to files, and return the receipts of all files.

        :raises TargetUnavailable: a file is missing.
        """
        try:
            receipts = [receipt for stage in self._stages.values() for receipt in stage.drain()]
        except FileNotFoundError as error:
            raise self._gone(f"A staged file is gone: {error.filename}") from error
        self._stages.clear()
        return tuple(map(pickle.dumps, receipts))

    def discard(self, receipts: Sequence[bytes]) -> None:
        """Delete the files of receipts."""
        files = self._refreshed().files
        for receipt in map(_receipt, receipts):
            files.delete(receipt.path)

    def close(self) -> None:
        """Discard the rows in memory, and the files whose receipts are not returned yet."""
        for stage in self._stages.values():
            stage.abandon()
        self._stages.clear()
        self._table_read = None

    # --- the ledger row ---------------------------------------------------------------------------

    def read(self) -> LedgerRow | None:
        """Return the ledger row of the table's newest version."""
        return self._row().row

    def finish(
        self, expected: LedgerRow | None, new: LedgerRow, receipts: Sequence[bytes] = ()
    ) -> Outcome:
        """Commit the staged files with the ledger row, if the row is `expected`.

        Return CONFLICT if the table has another ledger row, or the files no longer fit the table.

        :raises SchemaMismatch: the table no longer takes files.
        :raises TargetUnavailable: a staged file is missing.
        """
        staged = [_receipt(data) for data in (*receipts, *self.drain())]
        former = self._row()
        if former.row != expected or not self._fits(staged):
            return Outcome.CONFLICT
        if staged and (gone := self._table().files.missing(receipt.path for receipt in staged)):
            raise self._gone(f"{gone[0]}, staged for epoch {new.epoch}, is gone")
        version, request = self._commit(former, new, staged)
        for attempt in range(_TRIES):
            try:
                request()
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
            time.sleep(_PAUSE_S * 2**attempt * _CHANCE.random())
            now = self._row()
            if now.id == version:
                # The commit took effect. Then a client or proxy repeated the request, which conflicted.
                return Outcome.APPLIED
            if now != former or not self._fits(staged):
                break
        # No file is deleted, since the commit may have taken effect, or may still take effect.
        return Outcome.UNKNOWN

    # --- the table --------------------------------------------------------------------------------

    def _refreshed(self) -> T:
        """Read the newest version of the table."""
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
        return TargetUnavailable(
            what, f"{self.missing_files_remedy} All rows of the window are staged again."
        )

    def _fits(self, staged: Sequence[Receipt]) -> bool:
        """Return True if the files fit the table at the version that was read last."""
        shape = self._table().fingerprint
        return all(receipt.table == shape for receipt in staged)


def _receipt(data: bytes) -> Receipt:
    receipt: Receipt = pickle.loads(data)  # noqa: S301 -- made by a task of the same job
    return receipt


R = TypeVar("R")


def decode_ledger_row(data: bytes | str, type_: type[R], row: str, holder: str) -> R:
    """Decode the JSON of a ledger row.

    :param row: the row, as errors name it. Begins a sentence.
    :param holder: where the table keeps the row, such as "its file".
    :raises CorruptLog: this version of wal_sink cannot read the row.
    """
    try:
        return msgspec.json.decode(data, type=type_)
    except msgspec.DecodeError as error:
        raise CorruptLog(
            f"{row} is not what this version of wal_sink writes: {error}",
            f"Flush with the newer version that wrote it. Do not delete {holder}: the row says which epochs"
            " the table has.",
        ) from error


_FOLDERS = 8
"""The number of synced folders above a file: the folders of partitions, of the table and of its catalog."""


def sync(files: Iterable[Path], *, may_be_gone: bool = False) -> None:
    """Make files, and their entries in the folders above them, survive a power loss.

    :param may_be_gone: True to ignore a missing file, which somebody has deleted meanwhile.
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
        with contextlib.suppress(PermissionError):  # of a folder above the table's folder
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
"""The words with which stores and their clients refuse access, unless they are part of a key or URL."""


def kind_of_access(error: OSError) -> ErrorClass:
    """Return "fatal" if a store refuses access, and "retry" for any other error, such as an outage.

    delta-rs and Arrow raise OSError for both.
    """
    refuses = isinstance(error, PermissionError) or _REFUSES.search(str(error))
    return "fatal" if refuses else "retry"
