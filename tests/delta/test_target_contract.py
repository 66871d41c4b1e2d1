"""The contract of staged targets, over Delta tables in a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.delta.conftest import conflict_after_commit
from tests.support.power_loss import Power
from wal_sink.options import parse
from wal_sink.targets.base import Target
from wal_sink.targets.delta import DeltaTarget
from wal_sink.targets.delta.options import DeltaOptions
from wal_sink.testing.contracts import RestartContract, StagedContract, UnavailableContract
from wal_sink.testing.contracts.ledger import Stored
from wal_sink.testing.contracts.operations import COLUMN, OPERATIONS, UNAVAILABLE
from wal_sink.testing.contracts.rows import SCHEMA, WITH_DOUBLE


class TestDelta(StagedContract, RestartContract):
    """A table without partitions."""

    most_kills = 30
    partition_by: tuple[str, ...] = ()

    @pytest.fixture
    def target(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeltaTarget:
        path = str(tmp_path / "t")
        DeltaTable.create(path, WITH_DOUBLE, partition_by=list(self.partition_by))
        self.power = Power(monkeypatch, tmp_path)
        return DeltaTarget(parse({"delta.path": path}, DeltaOptions))

    def restart(self, target: Target) -> None:
        self.power.lose()

    def records(self, target: Target) -> list[Stored]:
        assert isinstance(target, DeltaTarget)
        table: pa.Table = DeltaTable(target.options.path).to_pyarrow_table()
        rows = table.to_pylist()
        return [(row["k"], row["n"], row["v"], row["t"], row.get("d")) for row in rows]

    def conflict_after_commit(
        self, patch: pytest.MonkeyPatch, landed: Callable[[], object]
    ) -> None:
        conflict_after_commit(patch, landed)


class TestPartitioned(TestDelta):
    """A table with many partitions."""

    most_kills = 8
    partition_by = ("k",)


class TestDeltaDeletes(UnavailableContract):
    """Upserts and deletes in one commit."""

    @pytest.fixture(params=[(), ("k",)], ids=["plain", "partitioned"])
    def target(self, tmp_path: Path, request: pytest.FixtureRequest) -> DeltaTarget:
        path = str(tmp_path / "t")
        DeltaTable.create(path, SCHEMA, partition_by=list(request.param))
        options = {"delta.mode": "upsert", "keyColumns": "k,n"}
        options |= {"operationColumn": COLUMN, "operations": OPERATIONS}
        options |= {"unavailableValue": UNAVAILABLE}
        return DeltaTarget(parse({"delta.path": path, **options}, DeltaOptions))

    records = TestDelta.records
