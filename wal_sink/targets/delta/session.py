"""The session of the Delta target: commits staged files with the ledger row.

Each conditional update is one commit on the version of the table from which the row was read. delta-rs
refuses a commit if one in between has noted the same transaction; it does not refuse one from a version
read after that. So the row is read and compared, and the commit made, on one and the same version
(`Table`).

The ledger row is a small file beside the table's, to which the table's own log points. Each change of the
row writes a new file under a random number, and then commits that number as the version of the transaction
`wal_sink/<query id>` (an action `txn` of Delta's log). Every version of the table keeps the newest number,
also over checkpoints and clean-ups of the log. So the commit is what changes the row: in one step with the
rows that it adds, and only from the row that its table was read with.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from deltalake.transaction import AddAction

from wal_sink.errors import CorruptLog, OptionError, TargetRefused
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.arrow_values import shorten
from wal_sink.targets.base import RefusedRow, RowsRefused
from wal_sink.targets.casts import key_of
from wal_sink.targets.client import shortly
from wal_sink.targets.columns import refuse_changed
from wal_sink.targets.delta.columns import EVENT, about_moved, holds, table_columns, words
from wal_sink.targets.delta.files import Files
from wal_sink.targets.delta.options import EVENT_COLUMN, DeltaOptions
from wal_sink.targets.delta.stage import AFTER_DELETE, ORDER, DeltaReceipt, DeltaStage, last_rows
from wal_sink.targets.delta.table import Table, classify, is_conflict
from wal_sink.targets.registry import published_elsewhere
from wal_sink.targets.staged_files import StagedFileSession
from wal_sink.targets.unavailable import new_row_error

_NUMBERS = random.SystemRandom()


class RowFile(NamedTuple):
    """The ledger row, and the number of its file; both are None where there is none."""

    number: int | None
    row: LedgerRow | None


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What a file has."""

    table: str
    """Id of the table for which the row was written. One that is replaced keeps its log under another id."""
    row: LedgerRow


class LedgerFiles:
    """The files that hold one query's ledger row: each change writes a new one."""

    def __init__(self, files: Files, query_id: str) -> None:
        self._files = files
        self._query_id = query_id
        self._read: tuple[int, _Kept] | None = None

    @property
    def app_id(self) -> str:
        """The transaction whose version is the number of the row's file."""
        return f"wal_sink/{self._query_id}"

    def row(self, table: Table) -> RowFile:
        """Return the row as of the table's version that was looked at; none, if that is of another table.

        :raises FileNotFoundError: its file is gone, as it is when another flusher has changed the row since.
        :raises CorruptLog: it is not what this version writes.
        """
        number = table.transaction_version(self.app_id)
        if number is None:
            return RowFile(None, None)
        if self._read is None or number != self._read[0]:
            self._read = number, self._kept(self._files.read(self._path(number)))
        kept = self._read[1]
        return RowFile(number, kept.row if kept.table == table.id else None)

    def write(self, row: LedgerRow, table: Table) -> int:
        """Write a file; return its number. Nothing points to it yet."""
        number = _NUMBERS.getrandbits(62)
        self._files.write(self._path(number), msgspec.json.encode(_Kept(table=table.id, row=row)))
        return number

    def delete(self, number: int | None) -> None:
        """Delete a file to which nothing points; one that stays is some kilobytes."""
        if number is not None:
            with contextlib.suppress(OSError):
                self._files.delete(self._path(number))

    def lost(self) -> CorruptLog:
        """Return the error for a row whose file is lost."""
        return CorruptLog(
            f"The Delta table's log points to a ledger row of query {self._query_id} whose file in"
            " _wal_sink/ is gone.",
            f"Restore the folder _wal_sink/{self._query_id} from a copy of the table: it says what is in the"
            " table already.",
        )

    def _path(self, number: int) -> str:
        return f"_wal_sink/{self._query_id}/{number:016x}.json"

    def _kept(self, data: bytes) -> _Kept:
        try:
            return msgspec.json.decode(data, type=_Kept)
        except msgspec.DecodeError as error:
            raise CorruptLog(
                f"The ledger row of query {self._query_id} in _wal_sink/ is not what this version of wal_sink"
                f" writes: {error}",
                "Flush with the newer version that wrote it. Do not delete it: it says what is in the table"
                " already.",
            ) from error


logger = logging.getLogger(__name__)

_LOOKS = 5
"""How often a row's file may be gone since the table was looked at; then it is lost."""


class DeltaSession(StagedFileSession[Table, DeltaReceipt]):
    """The flusher's, or a task's, which only stages."""

    receipt_type = DeltaReceipt
    # delta-rs calls a commit a conflict when it has read all versions up to the one that it asked for, and
    # each version is written once.
    may_land_late = False
    spare = "See that no VACUUM of the table has a retention of minutes."

    def __init__(self, options: DeltaOptions, query_id: str) -> None:
        super().__init__(classify, is_conflict)
        self._options = options
        self._query_id = query_id
        self._files = Files(options.path, options.storage_options)
        self._ledger = LedgerFiles(self._files, query_id)

    def read(self) -> LedgerRow | None:
        """Read the row of the table's newest version, and make that version durable."""
        row = self._row().row
        self._table().sync()
        return row

    def finish(
        self, expected: LedgerRow | None, new: LedgerRow, receipts: Sequence[bytes] = ()
    ) -> Outcome:
        """Commit files and row, if that is the one that was seen and the table's shape is the same.

        :raises SchemaMismatch: no file may be added.
        """
        staged = self._staged(receipts)
        row_file = self._row()
        if row_file.row != expected:
            return Outcome.CONFLICT
        if staged:
            self._table().refuse_unfit(replaces=bool(self._options.keys))
        self._refuse_gone(staged, new.epoch)
        if not self._are_of_now(staged):  # before they are read: rows of two shapes are not merged
            return Outcome.CONFLICT
        number = self._ledger.write(new, self._table())
        request, since = self._request(expected, new, number, staged), 0

        def ask() -> None:
            nonlocal since
            since = self._table().version  # a merge moves it on, whatever becomes of its commit
            request()

        outcome = self._try_commit(
            staged, ask, lambda: self._conflict_outcome(row_file, number, since)
        )
        if outcome is Outcome.CONFLICT:
            self._ledger.delete(number)
        if outcome is Outcome.APPLIED:
            self._after_commit(row_file, [receipt.path for receipt in staged if receipt.merged])
        return outcome

    def _request(
        self,
        expected: LedgerRow | None,
        new: LedgerRow,
        number: int,
        staged: Sequence[DeltaReceipt],
    ) -> Callable[[], None]:
        """Return what asks for a commit of files and row, on the version by which the row was seen."""
        transactions = {self._ledger.app_id: number}
        if expected is not None:
            transactions[self._query_id] = new.epoch
        reason, options = _reason(expected, new), self._options
        if not any(receipt.merged for receipt in staged):
            files = [_action(receipt) for receipt in staged]
            return lambda: self._table().commit(files, transactions, reason)
        paths, types = (receipt.path for receipt in staged), self._table().arrow_schema
        rows, partial = last_rows(self._files, paths, options.keys, types, options.timestamp_column)
        event = options.timestamp_column

        def merge() -> None:
            _refuse_new(self._table(), partial, options)
            self._table().merge(rows, options.keys, transactions, reason, event)

        return merge

    def _conflict_outcome(self, row_file: RowFile, number: int, since: int) -> Outcome | None:
        """Say what became of a commit that delta-rs calls a conflict; None: it may be tried again.

        delta-rs repeats a request whose answer was lost, and then meets its own commit; meanwhile another
        flusher may have moved the row on. Only the table's log tells that from a commit that came too late.

        :param since: the version on which the commit was asked for.
        """
        table = self._refreshed()
        if table.transaction_version(self._ledger.app_id) == row_file.number:
            return None
        match table.has_noted(self._ledger.app_id, number, since):
            case True:
                return Outcome.APPLIED
            case False:
                return Outcome.CONFLICT
        return Outcome.UNKNOWN

    def _after_commit(self, row_file: RowFile, merged: Sequence[str]) -> None:
        """Make the commit durable; delete what no commit needs. An error changes nothing any more.

        :param merged: files whose rows are in the table.
        """
        try:
            self._refreshed().sync()
        except Exception as error:  # noqa: BLE001 -- the flusher reads the row next, which does the same
            logger.info("the table could not be read after a commit: %s", shortly(error))
            self._looked = None
        self._ledger.delete(row_file.number)
        for path in merged:
            with contextlib.suppress(OSError):
                self._files.delete(path)

    def _row(self) -> RowFile:
        """Read the row of the newest version."""
        for _ in range(_LOOKS):
            with contextlib.suppress(FileNotFoundError):  # another flusher has moved the row on
                return self._ledger.row(self._refreshed())
        raise self._ledger.lost()

    def _opened(self) -> Table:
        return Table(self._options.path, self._options.storage_options, self._files)

    def _compared(self, plan: Plan) -> DeltaStage:
        if plan.table != self._options.path:
            here, option = self._options.path, f"delta.path={plan.table}"
            raise published_elsewhere(f"the Delta table {plan.table}", here, [option])
        table = self._refreshed()
        table.refuse_unfit(replaces=bool(key_of(plan)))
        moved = about_moved(plan, table.partitioned_by)
        refuse_changed(plan.of_table(), table_columns(table.fields), moved, words, holds)
        if (planned := key_of(plan)) and set(planned) != set(self._options.keys):
            now = f"keyColumns={','.join(self._options.keys)}" if self._options.keys else "append"
            raise OptionError(
                f"Rows with the key {', '.join(planned)} were published for {self._options.path} with"
                f" delta.mode=upsert, and the options say {now}",
                "Set delta.mode and keyColumns back until they are flushed. Then the options may change.",
            )
        event, now = plan.details.get(EVENT), self._options.timestamp_column
        if event and event != now:
            raise OptionError(
                f"Rows whose time is {event} were published for {self._options.path}, and {EVENT_COLUMN} is"
                f" {now or 'not given'}",
                "Set it back until they are flushed. Then it may change; restart `wal-sink flush --follow`.",
            )
        return DeltaStage(table, plan, merged=bool(self._options.keys))


def _refuse_new(table: Table, partial: pa.Table, options: DeltaOptions) -> None:
    """Refuse rows with unavailable cells whose key the table has not.

    :param partial: see `LastRows`.
    :raises RowsRefused: there are such rows.
    """
    if not partial.num_rows:
        return
    known, error = table.known_keys(partial, options.keys), new_row_error()
    refused = [
        RefusedRow(
            row[ORDER],
            TargetRefused(
                f"{options.path} refuses the row with {_shown(row, options.keys)}: {error.what}",
                error.remedy,
            ),
        )
        for row in partial.select([*options.keys, ORDER, AFTER_DELETE]).to_pylist()
        if row[AFTER_DELETE] or tuple(row[key] for key in options.keys) not in known
    ]
    if refused:
        raise RowsRefused(refused)


def _shown(row: Mapping[str, Any], keys: Sequence[str]) -> str:
    return ", ".join(f"{key}={shorten(row[key])}" for key in keys)


def _reason(expected: LedgerRow | None, new: LedgerRow) -> str:
    """Return why the row changes, for the table's history."""
    if expected is None or new.epoch <= expected.epoch:
        return f"the ledger says epoch {new.epoch}"
    return f"epochs {expected.epoch + 1} to {new.epoch}"


def _action(receipt: DeltaReceipt) -> AddAction:
    """Return what the table's log says of a file: of its rows their number alone.

    Of bounds delta-rs' datasets make a filter, and take a column that has none for one without such rows, as
    soon as another column has some: a boolean, a NaN, a column that was added to the table later.
    """
    return AddAction(
        path=receipt.path,
        size=receipt.size,
        partition_values=receipt.partition,
        modification_time=receipt.staged_ms,
        data_change=True,
        stats=msgspec.json.encode({"numRecords": receipt.rows}).decode(),
    )
