"""The methods that the author of a target must write. `make lint` checks this file; it is never run.

mypy fails here if the interface gains or changes a method.
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
    table: str


class PaperSession(IdempotentSession):
    """The methods of an `IdempotentSession`."""

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
    """The methods of a `TransactionalSession`."""

    def read(self) -> LedgerRow | None:
        raise NotImplementedError

    def write(self, plan: Plan, rows: RowSlice) -> None:
        raise NotImplementedError

    def finish(self, current: LedgerRow | None, new: LedgerRow) -> Outcome:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class PaperStage(StagedSession):
    """The methods of a `StagedSession`."""

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
    """The members of a target."""

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
    """The classes have no abstract methods left, and a session is a context manager."""
    target: Target = PaperTarget(options)
    with target.connect("query") as session:
        row: LedgerRow | None = session.read()
        assert row
    for made in (PaperTransaction(), PaperStage()):
        made.close()
