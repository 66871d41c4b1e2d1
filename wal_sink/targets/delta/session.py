"""The session of the Delta target: stages files, and commits them with the ledger row.

Each conditional update is one commit upon the version of the table from which the row was read. delta-rs
refuses a commit if one in between has noted the same transaction; it does not refuse one from a version read
after that. So the row is read and compared, and the commit made, on one and the same look (`Table`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence

import msgspec
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from wal_sink.errors import TargetUnavailable
from wal_sink.model.ledger import Mark, Outcome, Owner, Window
from wal_sink.model.plan import Plan
from wal_sink.targets.base import Slice, StagedSession
from wal_sink.targets.delta.columns import refuse_changed
from wal_sink.targets.delta.errors import classify, shortly
from wal_sink.targets.delta.files import Files
from wal_sink.targets.delta.ledger import LedgerFiles, Row
from wal_sink.targets.delta.options import DeltaOptions
from wal_sink.targets.delta.receipts import Receipt
from wal_sink.targets.delta.stage import Stage
from wal_sink.targets.delta.table import Table
from wal_sink.targets.elsewhere import published_elsewhere

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

    def read_ledger(self) -> Mark | None:
        """Read the row of the table's newest version, and make that version durable."""
        mark = self._row().mark
        self._table().sync()
        return mark

    def create(self, flushed: int) -> None:
        """Commit the first row, unless there is one."""
        self.replace_row(None, Mark.new(self._owner, flushed))

    def begin(self, window: Window) -> Outcome:
        """Commit the row; the table's rows stay as they are."""
        seen = self._row()
        mark = seen.mark
        if mark is None or mark.flushed != window.first - 1 or mark.begun is not None:
            return Outcome.REFUSED
        new = msgspec.structs.replace(mark, begun=window)
        return self._move(seen, new, f"epochs {window.first} to {window.last} begin")

    def replace_row(self, seen: Mark | None, new: Mark) -> Outcome:
        """Commit the row, if it is the one that was seen."""
        there = self._row()
        if there.mark != seen:
            return Outcome.REFUSED
        return self._move(there, new, f"the ledger says epoch {new.flushed}")

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
            stage.add(rows.batch)

    def compare(self, plan: Plan) -> None:
        """Read the table's newest version."""
        self._compared(plan).abandon()

    def drain(self) -> tuple[bytes, ...]:
        """End the files that are open; return the receipts of all."""
        receipts = [receipt for stage in self._stages.values() for receipt in stage.drain()]
        self._stages.clear()
        return tuple(receipt.to_bytes() for receipt in receipts)

    def finish(self, window: Window, receipts: Sequence[bytes] = ()) -> Outcome:
        """Commit the files and the row, if exactly this window is begun and the table's shape is the same."""
        staged = [Receipt.from_bytes(receipt) for receipt in receipts]
        seen = self._row()
        mark = seen.mark
        if mark is None or mark.flushed != window.first - 1 or mark.begun != window:
            return Outcome.REFUSED
        if staged and (gone := self._files.missing(receipt.path for receipt in staged)):
            raise TargetUnavailable(
                f"{gone[0]}, staged for epoch {window.last}, is gone",
                "See that no VACUUM of the table has a retention of minutes. All rows are staged again.",
            )
        said = f"epochs {window.first} to {window.last}"
        return self._move(seen, mark.finished(window), said, staged, window.last)

    def discard(self, receipts: Sequence[bytes]) -> None:
        """Delete the files."""
        for receipt in receipts:
            self._files.delete(Receipt.from_bytes(receipt).path)

    def close(self) -> None:
        """Forget what is staged without a receipt. Idempotent."""
        self._abandon()
        self._looked = None

    # --- commits ----------------------------------------------------------------------------------

    def _move(
        self,
        seen: Row,
        new: Mark,
        said: str,
        staged: Sequence[Receipt] = (),
        epoch: int | None = None,
    ) -> Outcome:
        """Commit a row after the one that was seen, with files.

        :param epoch: the last one that is in the table then; None: the commit is not about rows.
        :raises Exception: of delta-rs, when it certainly had no effect.
        """
        number = self._ledger.write(new)
        transactions = {self._ledger.app_id: number}
        if epoch is not None:
            transactions[self._owner.query_id] = epoch
        actions = [_action(receipt) for receipt in staged]
        for _ in range(_TRIES):
            table = self._table()
            if any(receipt.table != table.fingerprint for receipt in staged):
                self._ledger.delete(number)
                return Outcome.REFUSED
            try:
                table.commit(actions, transactions, {"wal_sink": said})
            except CommitFailedError as error:
                logger.info("a commit met another one: %s", shortly(error))
                there = self._refreshed().transaction_version(self._ledger.app_id)
                if there == number:  # its own, whose answer was lost
                    break
                if there != seen.number:
                    self._ledger.delete(number)
                    return Outcome.REFUSED
            except Exception as error:
                if classify(error) == "fatal":
                    raise
                self._looked = None
                logger.warning("the answer to a commit is lost: %s", shortly(error))
                return Outcome.UNKNOWN
            else:
                break
        else:
            self._ledger.delete(number)
            raise TargetUnavailable(
                f"Other writers of {self._options.path} were quicker {_TRIES} times, and changed what a"
                " commit depends on",
                "Nothing, if this passes: the flush goes on by itself.",
            )
        self._after_commit(seen)
        return Outcome.APPLIED

    def _after_commit(self, seen: Row) -> None:
        """Make the commit durable; delete the file of the row before. An error changes nothing any more."""
        try:
            self._refreshed().sync()
        except Exception as error:  # noqa: BLE001 -- the flusher reads the row next, which does the same
            logger.info("not looked at after a commit: %s", shortly(error))
            self._looked = None
        self._ledger.delete(seen.number)

    def _row(self) -> Row:
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
        table.refuse_unfit()
        refuse_changed(plan, table.fields, table.partitioned_by)
        return Stage(self._files, plan, table.fingerprint)

    def _abandon(self) -> None:
        for stage in self._stages.values():
            stage.abandon()
        self._stages.clear()


def _action(receipt: Receipt) -> AddAction:
    return AddAction(
        path=receipt.path,
        size=receipt.size,
        partition_values=receipt.partition,
        modification_time=receipt.staged_ms,
        data_change=True,
        stats=receipt.statistics,
    )
