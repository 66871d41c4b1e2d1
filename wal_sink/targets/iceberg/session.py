"""The session of the Iceberg target: stages files, and commits them with the ledger row."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence

from wal_sink.errors import TargetUnavailable
from wal_sink.model.ledger import LedgerState, Outcome, Owner, Window
from wal_sink.model.plan import Plan
from wal_sink.targets.base import Slice, StagedSession
from wal_sink.targets.columns import refuse_changed
from wal_sink.targets.iceberg.ledger import Seen, epochs, met, tag
from wal_sink.targets.iceberg.options import IcebergOptions
from wal_sink.targets.iceberg.plan import refuse_unfit, table_columns
from wal_sink.targets.iceberg.stage import Receipt, Stage, receipt
from wal_sink.targets.iceberg.table import IcebergTable, classify, is_conflict
from wal_sink.targets.registry import published_elsewhere

logger = logging.getLogger(__name__)

_TRIES = 8
"""How often a commit goes around those of other writers; then the flush tries it anew."""
_PAUSE_S = 0.05
"""Before the second try; doubled before each one after it."""
_IDS = random.SystemRandom()


class IcebergSession(StagedSession):
    """The flusher's, or a task's, which only stages."""

    def __init__(self, options: IcebergOptions, owner: Owner) -> None:
        self._options = options
        self._owner = owner
        self._tag = tag(owner.query_id)
        self._opened: IcebergTable | None = None
        self._stages: dict[str, Stage] = {}
        """By the keys of the plans; empty after each `drain`: the next share looks at the table anew."""

    # --- the ledger -------------------------------------------------------------------------------

    def read_ledger(self) -> LedgerState | None:
        """Read the row of the table's newest version."""
        return self._refreshed().seen(self._tag).state

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
            self.compare(plan)
            stage = self._stages[plan.key] = Stage(self._table())
        if rows.batch.num_rows:
            stage.add(rows.batch)

    def compare(self, plan: Plan) -> None:
        """Read the table's newest version."""
        if plan.table != self._options.table:
            here, option = self._options.table, f"table={plan.table}"
            raise published_elsewhere(f"the Iceberg table {plan.table}", here, [option])
        table = self._refreshed().table
        refuse_unfit(table, self._options.table)
        refuse_changed(plan, table_columns(table.schema()))

    def drain(self) -> tuple[bytes, ...]:
        """Write the files; return the receipts of all."""
        receipts = [each for stage in self._stages.values() for each in stage.drain()]
        self._stages.clear()
        return tuple(each.to_bytes() for each in receipts)

    def commit(
        self, seen: LedgerState | None, new: LedgerState, receipts: Sequence[bytes]
    ) -> Outcome:
        """Commit the files and the row, if it is the one that was seen and the table's shape is the same."""
        staged = [receipt(each) for each in receipts]
        table = self._refreshed().table
        if gone := [each for each in staged if not table.io.new_input(each.path).exists()]:
            raise TargetUnavailable(
                f"{gone[0].path}, staged for epoch {new.flushed}, is gone",
                "See that remove_orphan_files spares files of the last days. All rows are staged again.",
            )
        return self._move(seen, new, staged)

    def discard(self, receipts: Sequence[bytes]) -> None:
        """Delete the files."""
        io = self._refreshed().table.io
        for each in receipts:
            try:
                io.delete(receipt(each).path)
            except FileNotFoundError:
                continue

    def close(self) -> None:
        """Forget what is staged without a receipt. Idempotent."""
        self._abandon()
        self._opened = None

    # --- commits ----------------------------------------------------------------------------------

    def _move(
        self, seen: LedgerState | None, new: LedgerState, staged: Sequence[Receipt] = ()
    ) -> Outcome:
        """Commit a row after the one that was seen, with files."""
        there = self._refreshed().seen(self._tag)
        if there.state != seen:
            return Outcome.CONFLICT
        snapshot = _IDS.getrandbits(62) + 1
        """The same for each try: of several that are under way one takes effect at most."""
        for number in range(_TRIES):
            before = there
            if any(each.table != self._table().fingerprint for each in staged):
                # An earlier try may still land, unless the row has moved.
                return Outcome.CONFLICT if number == 0 else Outcome.UNKNOWN
            outcome = self._commit(there, snapshot, new, staged)
            if outcome is not None:
                return outcome
            time.sleep(_PAUSE_S * 2**number * _IDS.random())
            there = self._refreshed().seen(self._tag)
            if (outcome := met(before, snapshot, there)) is not None:
                return outcome
            if there.state != seen:  # the table was rolled back meanwhile
                return Outcome.UNKNOWN
        return Outcome.UNKNOWN

    def _commit(
        self, there: Seen, snapshot: int, new: LedgerState, staged: Sequence[Receipt]
    ) -> Outcome | None:
        """Commit upon the look by which the row was seen; None: it may be tried again upon a new one."""
        table = self._table()
        files = [each.file(table.table) for each in staged]
        window = new.last
        said = epochs(window.first, window.last) if window else ""
        try:
            table.commit(self._tag, there, snapshot, there.next(new), files, said)
        except Exception as error:
            if is_conflict(error):
                logger.info("another writer committed at the same time: %s", error)
                return None
            if classify(error) == "fatal":
                raise
            # The request may still be under way: the staged files stay.
            self._opened = None
            logger.warning("the answer to a commit is lost: %r", error)
            return Outcome.UNKNOWN
        return Outcome.APPLIED

    def _refreshed(self) -> IcebergTable:
        """Return the table at its newest version."""
        if self._opened is None:
            self._opened = IcebergTable(self._options)
        else:
            try:
                self._opened.refresh()
            except BaseException:
                self._opened = None
                raise
        return self._opened

    def _table(self) -> IcebergTable:
        """Return the table as it was looked at last."""
        assert self._opened is not None
        return self._opened

    def _abandon(self) -> None:
        for stage in self._stages.values():
            stage.abandon()
        self._stages.clear()
