"""The session of the Iceberg target: commits staged files with the ledger row."""

from __future__ import annotations

import random
from collections.abc import Sequence

from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.columns import refuse_changed
from wal_sink.targets.iceberg.ledger import conflict_outcome, epochs, tag
from wal_sink.targets.iceberg.options import IcebergOptions
from wal_sink.targets.iceberg.plan import is_wider, refuse_unfit, table_columns
from wal_sink.targets.iceberg.stage import IcebergReceipt, IcebergStage
from wal_sink.targets.iceberg.table import IcebergTable, classify, is_conflict
from wal_sink.targets.registry import published_elsewhere
from wal_sink.targets.staged_files import StagedFileSession

_IDS = random.SystemRandom()


class IcebergSession(StagedFileSession[IcebergTable, IcebergReceipt]):
    """The flusher's, or a task's, which only stages."""

    receipt_type = IcebergReceipt
    may_land_late = True  # a client or a proxy may have repeated the request
    spare = "See that remove_orphan_files spares files of the last days."

    def __init__(self, options: IcebergOptions, query_id: str) -> None:
        super().__init__(classify, is_conflict)
        self._options = options
        self._tag = tag(query_id)

    def read(self) -> LedgerRow | None:
        """Read the row of the table's newest version, and make that version durable."""
        table = self._refreshed()
        table.sync()
        return table.seen(self._tag).ledger

    def finish(
        self, expected: LedgerRow | None, new: LedgerRow, receipts: Sequence[bytes] = ()
    ) -> Outcome:
        """Commit the files and the row, if it is the one that was seen and the table's shape is the same."""
        staged = self._staged(receipts)
        row = self._refreshed().seen(self._tag)
        if row.ledger != expected:
            return Outcome.CONFLICT
        self._refuse_gone(staged, new.epoch)
        snapshot = _IDS.getrandbits(62) + 1
        """The same for each try: of several that are under way one takes effect at most."""
        summary = epochs(new.epoch if expected is None else expected.epoch + 1, new.epoch)

        def ask() -> None:
            table = self._table()
            files = [receipt.file(table.table) for receipt in staged]
            table.commit(self._tag, row, snapshot, row.next(new), files, summary)

        def became() -> Outcome | None:
            nonlocal row
            former, row = row, self._refreshed().seen(self._tag)
            outcome = conflict_outcome(former, snapshot, row)
            if outcome is None and row.ledger != expected:  # the table was rolled back meanwhile
                return Outcome.UNKNOWN
            return outcome

        return self._try_commit(staged, ask, became)

    def _opened(self) -> IcebergTable:
        return IcebergTable(self._options)

    def _compared(self, plan: Plan) -> IcebergStage:
        if plan.table != self._options.table:
            here, option = self._options.table, f"table={plan.table}"
            raise published_elsewhere(f"the Iceberg table {plan.table}", here, [option])
        table = self._refreshed().table
        refuse_unfit(table, self._options.table)
        columns = table.schema()
        refuse_changed(plan, table_columns(columns), holds=is_wider(plan, columns))
        return IcebergStage(self._table())
