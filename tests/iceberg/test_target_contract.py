"""The contract of staged targets, over Iceberg tables of a SQL catalog in a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from tests.iceberg.conftest import catalog_options, make_table
from tests.support.power_loss import Power
from wal_sink.options import parse
from wal_sink.targets.base import Target
from wal_sink.targets.iceberg import IcebergTarget
from wal_sink.targets.iceberg.catalog import catalog_of
from wal_sink.targets.iceberg.options import IcebergOptions
from wal_sink.testing.contracts import RestartContract, StagedContract
from wal_sink.testing.contracts.ledger import Stored
from wal_sink.testing.contracts.rows import WITH_DOUBLE

pytestmark = pytest.mark.long


class IcebergContract(StagedContract):
    """A table of any catalog."""

    most_kills = 6

    def records(self, target: Target) -> list[Stored]:
        assert isinstance(target, IcebergTarget)
        table = catalog_of(target.options).load_table(target.options.table)
        rows = table.scan().to_arrow().to_pylist()
        return [(row["k"], row["n"], row["v"], row["t"], row["d"]) for row in rows]

    def conflict_after_commit(
        self, patch: pytest.MonkeyPatch, landed: Callable[[], object]
    ) -> None:
        """Repeat the request, as a proxy may: the second request conflicts with the first."""
        real: Any = Table._do_commit

        def commit(self: Table, *arguments: Any) -> None:
            patch.setattr(Table, "_do_commit", real)
            real(self, *arguments)
            landed()
            raise CommitFailedException("the commit conflicts with itself")

        patch.setattr(Table, "_do_commit", commit)


class TestIceberg(IcebergContract, RestartContract):
    """A table without partitions."""

    @pytest.fixture
    def target(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IcebergTarget:
        options = catalog_options(tmp_path)
        make_table(options, WITH_DOUBLE)
        self.power = Power(monkeypatch, tmp_path)
        return IcebergTarget(parse(options, IcebergOptions))

    def restart(self, target: Target) -> None:
        self.power.lose()
