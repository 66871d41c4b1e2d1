"""Databases that rows are flushed to. This package exports all that the author of a target imports.

A name is loaded at its first use, so an import of this package loads no driver. `base` has the interface.
`docs/targets.md` says how to write a target.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wal_sink.model.ledger import LedgerRow, Outcome
    from wal_sink.model.plan import Column, Plan
    from wal_sink.options import Options
    from wal_sink.targets.base import (
        ErrorClass,
        IdempotentSession,
        RefusedRow,
        RowSlice,
        RowsRefused,
        Slice,
        StagedSession,
        Target,
        TransactionalSession,
    )
    from wal_sink.targets.columns import TableColumn, TableRules, match_columns, refuse_changed
    from wal_sink.targets.sql import SqlOptions, SqlTarget

__all__ = [
    "Column",
    "ErrorClass",
    "IdempotentSession",
    "LedgerRow",
    "Options",
    "Outcome",
    "Plan",
    "RefusedRow",
    "RowSlice",
    "RowsRefused",
    "Slice",
    "SqlOptions",
    "SqlTarget",
    "StagedSession",
    "TableColumn",
    "TableRules",
    "Target",
    "TransactionalSession",
    "match_columns",
    "refuse_changed",
]

_MODULES = (
    "wal_sink.targets.base",
    "wal_sink.model.ledger",
    "wal_sink.model.plan",
    "wal_sink.options",
    "wal_sink.targets.columns",
    "wal_sink.targets.sql",
)
"""The modules that define the exported names. A name is read from the first of these modules that has it."""


def __getattr__(name: str) -> Any:
    for module in _MODULES if name in __all__ else ():
        if hasattr(source := import_module(module), name):
            return getattr(source, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
