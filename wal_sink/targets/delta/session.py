"""The session of the Delta target: commits staged files with the ledger row.

The ledger row is a small file in the table's folder. Each change of the row writes a new file under a random
number. Then a commit sets this number as the version of the transaction `wal_sink/<query id>/<table id>` (an
action `txn` of Delta's log). So the row changes in one step with the rows that the commit adds. Each version
of the table has the newest number, also after checkpoints and clean-ups of the log.

The update is conditional: delta-rs refuses a commit if a later commit than the version that was read sets the
same transaction. delta-rs does not compare the numbers that commits set. So the row is read, compared and
committed on one version of the table (`Table`).
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
from wal_sink.targets.arrow_columns import table_columns
from wal_sink.targets.arrow_values import shorten
from wal_sink.targets.base import RefusedRow, RowsRefused
from wal_sink.targets.casts import key_of
from wal_sink.targets.cdc import new_row_error
from wal_sink.targets.client import shortly
from wal_sink.targets.columns import published_elsewhere, refuse_changed
from wal_sink.targets.delta.columns import EVENT, holds_planned, words
from wal_sink.targets.delta.files import Files
from wal_sink.targets.delta.options import EVENT_COLUMN, DeltaOptions
from wal_sink.targets.delta.partitions import about_moved
from wal_sink.targets.delta.plan import refuse_unfit
from wal_sink.targets.delta.stage import AFTER_DELETE, ORDER, DeltaStage, last_rows
from wal_sink.targets.delta.table import Table, classify, is_conflict
from wal_sink.targets.staged_files import (
    Receipt,
    RowVersion,
    StagedFileSession,
    decode_ledger_row,
)

_NUMBERS = random.SystemRandom()


class LedgerFiles:
    """The files of one query's ledger row: each change of the row writes a new file."""

    def __init__(self, files: Files, query_id: str) -> None:
        self._files = files
        self._query_id = query_id
        self._read: tuple[int, LedgerRow] | None = None

    def app_id(self, table: Table) -> str:
        """Return the name of the transaction whose version is the number of the row's file.

        CREATE OR REPLACE keeps the table's log and changes the table's id. So the new table has no row.
        """
        return f"wal_sink/{self._query_id}/{table.id}"

    def row(self, table: Table) -> RowVersion:
        """Return the row in the version of the table that was read last.

        :raises FileNotFoundError: the row's file is missing. Another flusher may have changed the row.
        :raises CorruptLog: this version of wal_sink cannot read the file.
        """
        number = table.transaction_version(self.app_id(table))
        if number is None:
            return RowVersion(None, None)
        if self._read is None or number != self._read[0]:
            row = f"The ledger row of query {self._query_id} in _wal_sink/"
            data = self._files.read(self._path(number))
            self._read = number, decode_ledger_row(data, LedgerRow, row, "its file")
        return RowVersion(*self._read)

    def write(self, row: LedgerRow) -> int:
        """Write a row to a new file, make the file durable, and return its number."""
        number = _NUMBERS.getrandbits(62)
        self._files.write(self._path(number), msgspec.json.encode(row))
        self._files.sync([self._path(number)])
        return number

    def delete(self, number: int | None) -> None:
        """Delete the file of an earlier ledger row.

        If the deletion fails, the file of some hundred bytes stays in `_wal_sink/`.
        """
        if number is not None:
            with contextlib.suppress(OSError):
                self._files.delete(self._path(number))

    def lost(self) -> CorruptLog:
        """Return the error for a row whose file is missing for no known reason."""
        return CorruptLog(
            f"The Delta table's log points to a ledger row of query {self._query_id} whose file in"
            " _wal_sink/ is gone.",
            f"Restore the folder _wal_sink/{self._query_id} from a copy of the table: its file says which"
            " epochs the table has.",
        )

    def _path(self, number: int) -> str:
        return f"_wal_sink/{self._query_id}/{number:016x}.json"


logger = logging.getLogger(__name__)

_READS = 5
"""The number of reads after which a missing file counts as lost. A single read may fail because another
flusher changes the row."""


class DeltaSession(StagedFileSession[Table]):
    """The session of a flusher or a task. Only a flusher commits; a task stages files."""

    missing_files_remedy = "Check that no VACUUM of the table has a retention of minutes."

    def __init__(self, options: DeltaOptions, query_id: str) -> None:
        super().__init__(classify, is_conflict)
        self._options = options
        self._query_id = query_id
        self._files = Files(options.path, options.storage_options)
        self._ledger = LedgerFiles(self._files, query_id)

    def _row(self) -> RowVersion:
        for _ in range(_READS):
            with contextlib.suppress(FileNotFoundError):  # if another flusher has changed the row
                row = self._ledger.row(self._refreshed())
                self._table().sync()  # its writer may have died before it did so
                return row
        raise self._ledger.lost()

    def _commit(
        self, former: RowVersion, new: LedgerRow, staged: Sequence[Receipt]
    ) -> tuple[int, Callable[[], None]]:
        table, options = self._table(), self._options
        merged = [receipt.path for receipt in staged] if options.keys else []
        if merged:
            table.refuse_unremovable()  # before the ledger row's file is written
            event, names = options.timestamp_column, table.types.names
            rows, partial = last_rows(self._files, merged, options.keys, names, event)
        number, reason = self._ledger.write(new), _reason(former.row, new)
        transactions = {self._ledger.app_id(table): number}
        if former.row is not None:
            transactions[self._query_id] = new.epoch

        def request() -> None:
            if merged:
                _refuse_new(self._table(), partial, options)
                self._table().merge(rows, options.keys, transactions, reason, event)
            else:
                self._table().commit([receipt.entry for receipt in staged], transactions, reason)
            self._after_commit(former.id, merged)

        return number, request

    def _after_commit(self, former: int | None, merged: Sequence[str]) -> None:
        """Make the commit durable, and delete the files that nobody needs any more.

        This method raises no error, since the commit has taken effect.

        :param former: the number of the row's former file.
        :param merged: the paths of the staged files, whose rows a merge has written to new files.
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
        published = _mode(key_of(plan), plan.details.get(EVENT, ""))
        if published != (now := _mode(self._options.keys, self._options.timestamp_column)):
            raise OptionError(
                f"Rows were published for {self._options.path} with {published}, and the options say {now}.",
                "Set the options back until these rows are flushed. Then the options may change; restart"
                " `wal-sink flush --follow`.",
            )
        return DeltaStage(table, plan)


def _mode(keys: Sequence[str], event: str) -> str:
    """Return the options that say how rows get into the table.

    :param event: the column with the event time. Empty if there is no such column.
    """
    upsert = f"delta.mode=upsert and keyColumns={','.join(sorted(keys))}"
    return (upsert if keys else "delta.mode=append") + (event and f" and {EVENT_COLUMN}={event}")


def _refuse_new(table: Table, partial: pa.Table, options: DeltaOptions) -> None:
    """Refuse rows with unavailable cells whose key the table lacks.

    :param partial: the rows with unavailable cells, see `last_rows`.
    :raises RowsRefused: the table lacks the key of a row.
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
    """Return the text for the table's history about a change of the ledger row."""
    if expected is None or new.epoch <= expected.epoch:
        return f"the ledger says epoch {new.epoch}"
    return f"epochs {expected.epoch + 1} to {new.epoch}"
