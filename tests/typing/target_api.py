"""What the author of a target has to write, as a type checker sees it; `make lint` checks it.

The classes are complete: a method that the interface gains, or changes, fails mypy here. Nothing here is
ever called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from wal_sink.targets import (
    IdempotentSession,
    LedgerRow,
    Options,
    Outcome,
    Plan,
    RowSlice,
    Slice,
    StagedSession,
    Target,
    TransactionalSession,
)


class PaperOptions(Options, frozen=True, kw_only=True):
    """The options of `PaperTarget`."""

    table: str


class PaperSession(IdempotentSession):
    """Writes to paper: all that such a session owes, and nothing more."""

    def read(self) -> LedgerRow | None:
        raise NotImplementedError

    def finish(self, current: LedgerRow | None, new: LedgerRow) -> Outcome:
        raise NotImplementedError

    def write(self, plan: Plan, rows: Slice) -> None:
        raise NotImplementedError

    def drain(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class PaperTransaction(TransactionalSession):
    """All that one owes whose rows count by a transaction."""

    def read(self) -> LedgerRow | None:
        raise NotImplementedError

    def write(self, plan: Plan, rows: RowSlice) -> None:
        raise NotImplementedError

    def finish(self, current: LedgerRow | None, new: LedgerRow) -> Outcome:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class PaperStage(StagedSession):
    """All that one owes whose rows are staged."""

    def read(self) -> LedgerRow | None:
        raise NotImplementedError

    def write(self, plan: Plan, rows: RowSlice) -> None:
        raise NotImplementedError

    def drain(self) -> tuple[bytes, ...]:
        raise NotImplementedError

    def finish(
        self, current: LedgerRow | None, new: LedgerRow, receipts: Sequence[bytes] = ()
    ) -> Outcome:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class PaperTarget(Target):
    """Paper: all that a target owes, and nothing more."""

    name = "paper"
    options_type = PaperOptions
    interface = 2

    options: PaperOptions

    @property
    def shape(self) -> Mapping[str, str]:
        return {"table": self.options.table}

    def plan(self, schema: pa.Schema, key: str) -> Plan:
        raise NotImplementedError

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        raise NotImplementedError

    def connect(self, query_id: str) -> PaperSession:
        raise NotImplementedError


def it_is_complete(options: PaperOptions) -> None:
    """No class is abstract any more, and a session is its own context manager."""
    target: Target = PaperTarget(options)
    with target.connect("query") as session:
        row: LedgerRow | None = session.read()
        assert row
    for made in (PaperTransaction(), PaperStage()):
        made.close()
