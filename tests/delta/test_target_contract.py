"""The contract of targets that stage, over Delta tables in a folder."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from wal_sink.options import parse
from wal_sink.targets.base import Target
from wal_sink.targets.delta import DeltaTarget
from wal_sink.targets.delta.options import DeltaOptions
from wal_sink.testing.contracts.rows import SCHEMA, Record
from wal_sink.testing.contracts.staged import StagedContract


class TestDelta(StagedContract):
    """A table without partitions."""

    partition_by: tuple[str, ...] = ()

    @pytest.fixture
    def target(self, tmp_path: Path) -> DeltaTarget:
        path = str(tmp_path / "t")
        DeltaTable.create(path, SCHEMA, partition_by=list(self.partition_by))
        return DeltaTarget(parse({"delta.path": path}, DeltaOptions))

    def records(self, target: Target) -> list[Record]:
        assert isinstance(target, DeltaTarget)
        found: pa.Table = DeltaTable(target.options.path).to_pyarrow_table()
        return [(row["k"], row["n"], row["v"], row["t"]) for row in found.to_pylist()]


class TestPartitioned(TestDelta):
    """Files of many partitions."""

    partition_by = ("k",)
