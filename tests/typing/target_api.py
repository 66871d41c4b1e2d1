"""What the author of a target has to write, as a type checker sees it; `make lint` checks it.

The two classes are complete: a method that the interface gains, or changes, fails mypy here. Nothing here is
ever called.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from wal_sink.model.ledger import LedgerState, Outcome, Owner, Window
from wal_sink.model.plan import Plan
from wal_sink.options import Options
from wal_sink.targets.base import Kind, Session, Slice, Target


class PaperOptions(Options, frozen=True, kw_only=True):
    """The options of `PaperTarget`."""

    table: str


class PaperSession(Session):
    """Writes to paper: all that a session owes, and nothing more."""

    def read_ledger(self) -> LedgerState | None:
        raise NotImplementedError

    def create(self, flushed: int) -> None:
        raise NotImplementedError

    def begin(self, window: Window) -> Outcome:
        raise NotImplementedError

    def write(self, plan: Plan, rows: Slice) -> None:
        raise NotImplementedError

    def finish(self, window: Window) -> Outcome:
        raise NotImplementedError

    def compare_and_set(self, seen: LedgerState | None, new: LedgerState) -> Outcome:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class PaperTarget(Target):
    """Paper: all that a target owes, and nothing more."""

    name = "paper"
    options_type = PaperOptions

    def __init__(self, options: PaperOptions) -> None:
        self._options = options

    @property
    def shape(self) -> Mapping[str, str]:
        return {"table": self._options.table}

    def plan(self, schema: pa.Schema, key: str) -> Plan:
        raise NotImplementedError

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        raise NotImplementedError

    def connect(self, owner: Owner) -> PaperSession:
        raise NotImplementedError

    def classify(self, error: Exception) -> Kind:
        return "retry" if isinstance(error, OSError) else "fatal"


def it_is_complete(options: PaperOptions, owner: Owner) -> None:
    """Neither class is abstract any more, and a session is its own context manager."""
    target: Target = PaperTarget(options)
    with target.connect(owner) as session:
        mark: LedgerState | None = session.read_ledger()
        assert mark
