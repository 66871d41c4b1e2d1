"""The session of the Delta target: commits staged files with the ledger row.

Each conditional update is one commit, on the version of the table in which the row was read. delta-rs refuses
the commit if a commit since that version has the same transaction. It cannot detect a commit before that
version. So the row is read, compared and committed on one version (`Table`).

The ledger row is a small file in the table's folder. Each change of the row writes a new file under a random
number. Then a commit sets this number as the version of the transaction `wal_sink/<query id>/<table id>` (an
action `txn` of Delta's log). Each version of the table keeps the newest number, also after checkpoints and
clean-ups of the log. So the commit changes the row in one step with the rows that it adds, and only from the
row that was read.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from wal_sink.errors import CorruptLog, OptionError, TargetRefused
from wal_sink.model.ledger import LedgerRow
from wal_sink.model.plan import Plan
from wal_sink.targets.arrow_tables import table_columns
from wal_sink.targets.arrow_values import shorten
from wal_sink.targets.base import RefusedRow, RowsRefused
from wal_sink.targets.casts import key_of
from wal_sink.targets.cdc import new_row_error
from wal_sink.targets.client import shortly
from wal_sink.targets.columns import published_elsewhere, refuse_changed
from wal_sink.targets.delta.columns import (
    EVENT,
    about_moved,
    holds_planned,
    words,
)
from wal_sink.targets.delta.options import EVENT_COLUMN, DeltaOptions
from wal_sink.targets.delta.plan import refuse_unfit
from wal_sink.targets.delta.stage import AFTER_DELETE, ORDER, DeltaStage, last_rows
from wal_sink.targets.delta.table import Files, Table, classify, is_conflict
from wal_sink.targets.staged_files import Receipt, RowVersion, StagedFileSession

_NUMBERS = random.SystemRandom()


class LedgerFiles:
    """The files with one query's ledger row. Each change of the row writes a new file."""

    def __init__(self, files: Files, query_id: str) -> None:
        self._files = files
        self._query_id = query_id
        self._read: tuple[int, LedgerRow] | None = None

    def app_id(self, table: Table) -> str:
        """Return the transaction whose version is the number of the row's file.

        A replaced table keeps its log and gets another id, so it has no row.
        """
        return f"wal_sink/{self._query_id}/{table.id}"

    def row(self, table: Table) -> RowVersion:
        """Return the row in the version of the table that was read last.

        :raises FileNotFoundError: its file is missing, which happens if another flusher has changed the row.
        :raises CorruptLog: this version of wal_sink cannot read the file.
        """
        number = table.transaction_version(self.app_id(table))
        if number is None:
            return RowVersion(None, None)
        if self._read is None or number != self._read[0]:
            self._read = number, self._decoded(self._files.read(self._path(number)))
        return RowVersion(*self._read)

    def write(self, row: LedgerRow) -> int:
        """Write a durable file, and return its number. The table does not name it yet."""
        number = _NUMBERS.getrandbits(62)
        self._files.write(self._path(number), msgspec.json.encode(row))
        self._files.sync([self._path(number)])
        return number

    def delete(self, number: int | None) -> None:
        """Delete a file that the table does not name. If that fails, some hundred bytes stay."""
        if number is not None:
            with contextlib.suppress(OSError):
                self._files.delete(self._path(number))

    def lost(self) -> CorruptLog:
        """Return the error for a ledger row whose file is missing."""
        return CorruptLog(
            f"The Delta table's log points to a ledger row of query {self._query_id} whose file in"
            " _wal_sink/ is gone.",
            f"Restore the folder _wal_sink/{self._query_id} from a copy of the table: its file says which"
            " epochs the table has.",
        )

    def _path(self, number: int) -> str:
        return f"_wal_sink/{self._query_id}/{number:016x}.json"

    def _decoded(self, data: bytes) -> LedgerRow:
        try:
            return msgspec.json.decode(data, type=LedgerRow)
        except msgspec.DecodeError as error:
            raise CorruptLog(
                f"The ledger row of query {self._query_id} in _wal_sink/ is not what this version of wal_sink"
                f" writes: {error}",
                "Flush with the newer version that wrote it. Do not delete it: it says which epochs the table"
                " has.",
            ) from error


logger = logging.getLogger(__name__)

_READS = 5
"""The largest number of reads after which a missing file counts as lost. Each may fail because another
flusher changes the row."""


class DeltaSession(StagedFileSession[Table]):
    """The session of a flusher, or of a task, which only stages."""

    spare = "Check that no VACUUM of the table has a retention of minutes."

    def __init__(self, options: DeltaOptions, query_id: str) -> None:
        super().__init__(classify, is_conflict)
        self._options = options
        self._query_id = query_id
        self._files = Files(options.path, options.storage_options)
        self._ledger = LedgerFiles(self._files, query_id)

    def _row(self) -> RowVersion:
        for _ in range(_READS):
            with contextlib.suppress(FileNotFoundError):  # another flusher has changed the row
                return self._ledger.row(self._refreshed())
        raise self._ledger.lost()

    def _commit(
        self, former: RowVersion, new: LedgerRow, staged: Sequence[Receipt]
    ) -> tuple[int, Callable[[], None]]:
        table, options, merged = self._table(), self._options, [r.path for r in staged if r.merged]
        if merged:
            table.refuse_unremovable()  # before a file is written for the ledger row
            event, names = options.timestamp_column, table.types.names
            paths = (receipt.path for receipt in staged)
            rows, partial = last_rows(self._files, paths, options.keys, names, event)
        number, reason = self._ledger.write(new), _reason(former.row, new)
        transactions = {self._ledger.app_id(table): number}
        if former.row is not None:
            transactions[self._query_id] = new.epoch

        def ask() -> None:
            if merged:
                _refuse_new(self._table(), partial, options)
                self._table().merge(rows, options.keys, transactions, reason, event)
            else:
                self._table().commit([receipt.entry for receipt in staged], transactions, reason)
            self._after_commit(former.id, merged)

        return number, ask

    def _after_commit(self, former: int | None, merged: Sequence[str]) -> None:
        """Make the commit durable, and delete the files that it replaces.

        An error changes nothing any more.

        :param former: the number of the row's former file.
        :param merged: files whose rows were merged into the table.
        """
        try:
            self._refreshed().sync()
        except Exception as error:  # noqa: BLE001 -- the flusher's next read makes the version durable
            logger.info("the table could not be read after a commit: %s", shortly(error))
            self._table_read = None
        self._ledger.delete(former)
        for path in merged:
            with contextlib.suppress(OSError):
                self._files.delete(path)

    def _opened(self) -> Table:
        return Table(self._options.path, self._options.storage_options, self._files)

    def _compared(self, plan: Plan) -> DeltaStage:
        if plan.table != self._options.path:
            here, option = self._options.path, f"delta.path={plan.table}"
            raise published_elsewhere(f"the Delta table {plan.table}", here, [option])
        table = self._refreshed()
        refuse_unfit(table, replaces=bool(key_of(plan)))
        refuse_changed(
            plan.of_table(),
            table_columns(table.types, words),
            about_moved(plan, table.partitioned_by),
            holds_planned(plan, table.types),
        )
        if (planned := key_of(plan)) and set(planned) != set(self._options.keys):
            now = f"keyColumns={','.join(self._options.keys)}" if self._options.keys else "append"
            raise OptionError(
                f"Rows with the key {', '.join(planned)} were published for {self._options.path} with"
                f" delta.mode=upsert, and the options say {now}.",
                "Set delta.mode and keyColumns back until these rows are flushed. Then they may change.",
            )
        event, now = plan.details.get(EVENT), self._options.timestamp_column
        if event and event != now:
            raise OptionError(
                f"Rows whose time is {event} were published for {self._options.path}, and {EVENT_COLUMN} is"
                f" {now or 'not given'}.",
                f"Set {EVENT_COLUMN} back until these rows are flushed. Then the option may change; restart"
                " `wal-sink flush --follow`.",
            )
        return DeltaStage(table, plan, merged=bool(self._options.keys))


def _refuse_new(table: Table, partial: pa.Table, options: DeltaOptions) -> None:
    """Refuse rows with unavailable cells whose key the table lacks.

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
    """Return the text about a change of the row, for the table's history."""
    if expected is None or new.epoch <= expected.epoch:
        return f"the ledger says epoch {new.epoch}"
    return f"epochs {expected.epoch + 1} to {new.epoch}"
