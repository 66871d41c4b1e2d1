"""The session of the Iceberg target: stages files, and lets the table commit them with the ledger row."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from wal_sink.model.ledger import LedgerRow
from wal_sink.model.plan import Plan
from wal_sink.targets.arrow_columns import holds, table_columns
from wal_sink.targets.columns import published_elsewhere, refuse_changed
from wal_sink.targets.iceberg.catalog import classify, is_conflict
from wal_sink.targets.iceberg.options import IcebergOptions
from wal_sink.targets.iceberg.plan import refuse_unfit
from wal_sink.targets.iceberg.stage import IcebergStage
from wal_sink.targets.iceberg.table import IcebergTable, tag
from wal_sink.targets.staged_files import Receipt, RowVersion, StagedFileSession

_IDS = random.SystemRandom()


class IcebergSession(StagedFileSession[IcebergTable]):
    """The session of a flusher or a task. Only a flusher commits; a task stages files."""

    missing_files_remedy = "Check that remove_orphan_files keeps files of the last days."

    def __init__(self, options: IcebergOptions, query_id: str) -> None:
        super().__init__(classify, is_conflict)
        self._options = options
        self._tag = tag(query_id)

    def _row(self) -> RowVersion:
        return self._refreshed().row(self._tag)

    def _commit(
        self, former: RowVersion, new: LedgerRow, staged: Sequence[Receipt]
    ) -> tuple[int, Callable[[], None]]:
        snapshot = _IDS.getrandbits(62) + 1
        files = [receipt.entry for receipt in staged]
        first = new.epoch if former.row is None else former.row.epoch + 1
        epochs = f"{first}" if first == new.epoch else f"{first} to {new.epoch}"
        return snapshot, lambda: self._table().commit(self._tag, snapshot, new, files, epochs)

    def _opened(self) -> IcebergTable:
        return IcebergTable(self._options)

    def _compared(self, plan: Plan) -> IcebergStage:
        if plan.table != self._options.table:
            here, option = self._options.table, f"table={plan.table}"
            raise published_elsewhere(f"the Iceberg table {plan.table}", here, [option])
        table = self._refreshed()
        refuse_unfit(table.table, self._options)
        refuse_changed(plan, table_columns(table.types), holds=holds(plan, table.types))
        return IcebergStage(table)
