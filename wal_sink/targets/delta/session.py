"""The session of the Delta target: stages files, and commits them with the ledger row.

Each conditional update is one commit upon the version of the table from which the row was read. delta-rs
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
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from wal_sink.errors import CorruptLog, OptionError, TargetUnavailable
from wal_sink.model.ledger import LedgerState, Outcome, Owner, Window
from wal_sink.model.plan import Plan
from wal_sink.targets.base import Slice, StagedSession
from wal_sink.targets.casts import key_of
from wal_sink.targets.client import shortly
from wal_sink.targets.columns import refuse_changed
from wal_sink.targets.delta.columns import EVENT, about_moved, partitions, table_columns, words
from wal_sink.targets.delta.options import EVENT_COLUMN, DeltaOptions
from wal_sink.targets.delta.stage import Receipt, Stage, in_order, last_rows
from wal_sink.targets.delta.table import Files, Table, classify, is_conflict
from wal_sink.targets.registry import published_elsewhere

_NUMBERS = random.SystemRandom()


class RowFile(NamedTuple):
    """The ledger row, and the number of its file; both are None where there is none."""

    number: int | None
    row: LedgerState | None


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What a file has."""

    table: str
    """Id of the table for which the row was written. One that is replaced keeps its log under another id."""
    row: LedgerState


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

    def write(self, row: LedgerState, table: Table) -> int:
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
        """Return the error for a row whose file is gone for good."""
        return CorruptLog(
            f"The Delta table's log points to a ledger row of query {self._query_id} whose file in"
            " _wal_sink/ is gone",
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

_TRIES = 5
"""How often a commit goes around what other writers have changed; then the flush tries it anew."""


class DeltaSession(StagedSession):
    """The flusher's, or a task's, which only stages."""

    def __init__(self, options: DeltaOptions, owner: Owner) -> None:
        self._options = options
        self._owner = owner
        self._files = Files(options.path, options.storage_options)
        self._ledger = LedgerFiles(self._files, owner.query_id)
        self._looked: Table | None = None
        self._stages: dict[str, Stage] = {}
        """By the keys of the plans; empty after each `drain`: the next share looks at the table anew."""

    # --- the ledger -------------------------------------------------------------------------------

    def read_ledger(self) -> LedgerState | None:
        """Read the row of the table's newest version, and make that version durable."""
        row = self._row().row
        self._table().sync()
        return row

    # --- rows -------------------------------------------------------------------------------------

    def start(self, window: Window) -> None:  # noqa: ARG002 -- a receipt depends on no window
        """Forget what is staged without a receipt."""
        self._abandon()

    def write(self, plan: Plan, rows: Slice) -> None:
        """Stage rows in Parquet files.

        :raises OptionError: the plan is for another table than the options.
        :raises SchemaMismatch: the table is no longer what the plan says.
        """
        stage = self._stages.get(plan.key)
        if stage is None:
            stage = self._stages[plan.key] = self._compared(plan)
        if rows.batch.num_rows:
            upsert = bool(self._options.keys)
            stage.add(
                in_order(rows, plan.operation, keyed=bool(key_of(plan))) if upsert else rows.batch
            )

    def compare(self, plan: Plan) -> None:
        """Read the table's newest version."""
        self._compared(plan).abandon()

    def drain(self) -> tuple[bytes, ...]:
        """End the files that are open; return the receipts of all."""
        receipts = [receipt for stage in self._stages.values() for receipt in stage.drain()]
        self._stages.clear()
        return tuple(receipt.to_bytes() for receipt in receipts)

    def commit(
        self, seen: LedgerState | None, new: LedgerState, receipts: Sequence[bytes]
    ) -> Outcome:
        """Commit files and row, if that is the one that was seen and the table's shape is the same.

        :raises SchemaMismatch: a window is begun, and no file may be added.
        """
        staged = [Receipt.from_bytes(receipt) for receipt in receipts]
        there = self._row()
        if there.row != seen:
            return Outcome.CONFLICT
        if new.begun is not None:
            self._table().refuse_unfit(replaces=bool(self._options.keys))
        if staged and (gone := self._files.missing(receipt.path for receipt in staged)):
            raise TargetUnavailable(
                f"{gone[0]}, staged for epoch {new.flushed}, is gone",
                "See that no VACUUM of the table has a retention of minutes. All rows are staged again.",
            )
        return self._move(there, new, staged)

    def discard(self, receipts: Sequence[bytes]) -> None:
        """Delete the files."""
        for receipt in receipts:
            self._files.delete(Receipt.from_bytes(receipt).path)

    def close(self) -> None:
        """Forget what is staged without a receipt. Idempotent."""
        self._abandon()
        self._looked = None

    # --- commits ----------------------------------------------------------------------------------

    def _move(self, seen: RowFile, new: LedgerState, staged: Sequence[Receipt] = ()) -> Outcome:
        """Commit a row after the one that was seen, with files.

        :raises Exception: of delta-rs, which would come again.
        """
        number = self._ledger.write(new, self._table())
        transactions = {self._ledger.app_id: number}
        if _finished(seen.row, new):
            transactions[self._owner.query_id] = new.flushed
        files, rows = self._changes(staged)
        for _ in range(_TRIES):
            if any(receipt.table != self._table().fingerprint for receipt in staged):
                outcome: Outcome | None = Outcome.CONFLICT
            else:
                outcome = self._commit(seen, files, rows, transactions, _reason(seen.row, new))
            if outcome is Outcome.CONFLICT:
                self._ledger.delete(number)
            if outcome is Outcome.APPLIED:
                self._after_commit(seen, [each.path for each in staged if each.merged])
            if outcome is not None:
                return outcome
        self._ledger.delete(number)
        raise TargetUnavailable(
            f"Other writers of {self._options.path} were quicker {_TRIES} times, and changed what a"
            " commit depends on",
            "Nothing, if this passes: the flush goes on by itself.",
        )

    def _commit(
        self,
        seen: RowFile,
        files: list[AddAction],
        rows: pa.Table | None,
        transactions: dict[str, int],
        said: str,
    ) -> Outcome | None:
        """Commit upon the look by which the row was seen; None: it may be tried again upon a new one."""
        table = self._table()
        since = table.version
        try:
            if rows is None:
                table.commit(files, transactions, said)
            else:
                options = self._options
                table.merge(rows, options.keys, transactions, said, options.timestamp_column)
        except CommitFailedError as error:
            if not is_conflict(error):
                raise
            logger.info("another writer committed at the same time: %s", shortly(error))
            return self._met(seen, transactions[self._ledger.app_id], since)
        except Exception as error:
            if classify(error) == "fatal":
                raise
            # The request may still be under way: the row's new file stays, as do the staged ones.
            self._looked = None
            logger.warning("the answer to a commit is lost: %s", shortly(error))
            return Outcome.UNKNOWN
        return Outcome.APPLIED

    def _met(self, seen: RowFile, number: int, since: int) -> Outcome | None:
        """Say what became of a commit that delta-rs calls a conflict; None: it may be tried again.

        delta-rs repeats a request whose answer was lost, and then meets its own commit; meanwhile another
        flusher may have moved the row on. Only the table's log tells that from a commit that came too late.
        A commit that the log does not have now is never made: delta-rs reports a conflict when it has read
        all versions up to the one that it asked for, and each version is written once.

        :param since: the version upon which the commit was asked for.
        """
        table = self._refreshed()
        if table.transaction_version(self._ledger.app_id) == seen.number:
            return None
        match table.has_noted(self._ledger.app_id, number, since):
            case True:
                return Outcome.APPLIED
            case False:
                return Outcome.CONFLICT
        return Outcome.UNKNOWN

    def _after_commit(self, seen: RowFile, merged: Sequence[str]) -> None:
        """Make the commit durable; delete what no commit needs. An error changes nothing any more.

        :param merged: files whose rows are in the table.
        """
        try:
            self._refreshed().sync()
        except Exception as error:  # noqa: BLE001 -- the flusher reads the row next, which does the same
            logger.info("the table could not be read after a commit: %s", shortly(error))
            self._looked = None
        self._ledger.delete(seen.number)
        for path in merged:
            with contextlib.suppress(OSError):
                self._files.delete(path)

    def _row(self) -> RowFile:
        """Read the row of the newest version."""
        for _ in range(_TRIES):
            with contextlib.suppress(FileNotFoundError):  # another flusher has moved the row on
                return self._ledger.row(self._refreshed())
        raise self._ledger.lost()

    def _refreshed(self) -> Table:
        """Return the table at its newest version."""
        if self._looked is None:
            options = self._options
            self._looked = Table(options.path, options.storage_options, self._files)
        else:
            try:
                self._looked.refresh()
            except BaseException:
                self._looked = None
                raise
        return self._looked

    def _table(self) -> Table:
        """Return the table as it was looked at last."""
        assert self._looked is not None
        return self._looked

    def _compared(self, plan: Plan) -> Stage:
        if plan.table != self._options.path:
            here, option = self._options.path, f"delta.path={plan.table}"
            raise published_elsewhere(f"the Delta table {plan.table}", here, [option])
        table = self._refreshed()
        table.refuse_unfit(replaces=bool(key_of(plan)))
        moved = about_moved(plan, table.partitioned_by)
        refuse_changed(plan.of_table(), table_columns(table.fields), moved, words)
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
                "Set it back until they are flushed. Then it may change; start `wal-sink flush --follow`"
                " anew.",
            )
        if self._options.keys:
            return Stage(self._files, (), table.fingerprint, merged=True)
        return Stage(self._files, partitions(plan), table.fingerprint)

    def _changes(self, staged: Sequence[Receipt]) -> tuple[list[AddAction], pa.Table | None]:
        """Return the files that a commit adds, or the rows that it merges."""
        if not any(receipt.merged for receipt in staged):
            return [_action(receipt) for receipt in staged], None
        types = self._table().arrow_schema
        paths = (receipt.path for receipt in staged)
        options = self._options
        return [], last_rows(self._files, paths, options.keys, types, options.timestamp_column)

    def _abandon(self) -> None:
        for stage in self._stages.values():
            stage.abandon()
        self._stages.clear()


def _finished(seen: LedgerState | None, new: LedgerState) -> Window | None:
    """Return the window that a change of the row finishes; None: it finishes none."""
    return (
        new.last if seen is not None and seen.begun is not None and seen.begun == new.last else None
    )


def _reason(seen: LedgerState | None, new: LedgerState) -> str:
    """Say why the row changes, for the table's history."""
    if (window := _finished(seen, new)) is not None:
        return f"epochs {window.first} to {window.last}"
    if new.begun is not None:
        return f"epochs {new.begun.first} to {new.begun.last} begin"
    return f"the ledger says epoch {new.flushed}"


def _action(receipt: Receipt) -> AddAction:
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
