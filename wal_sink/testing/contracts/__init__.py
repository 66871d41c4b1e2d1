"""Contract suites: test classes that check what `wal_sink.targets.base` requires of a target.

`docs/targets.md#its-contract-suite` says which suites a target needs, and what their author writes.
"""

# ruff: noqa: E402 -- pytest has to know the modules before their import

import pkgutil

import pytest

# By default pytest shows the values of a failed `assert` only in test files. The suites are not test files.
pytest.register_assert_rewrite(
    *(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__))
)

from wal_sink.testing.contracts.kills import RestartContract
from wal_sink.testing.contracts.operations import (
    CellDeletesContract,
    DeletesContract,
    UnavailableContract,
)
from wal_sink.testing.contracts.refusals import RefusalsContract
from wal_sink.testing.contracts.sessions import (
    SequentialContract,
    SqlContract,
    StagedContract,
    TargetContract,
    TransactionalContract,
)

__all__ = [
    "CellDeletesContract",
    "DeletesContract",
    "RefusalsContract",
    "RestartContract",
    "SequentialContract",
    "SqlContract",
    "StagedContract",
    "TargetContract",
    "TransactionalContract",
    "UnavailableContract",
]
