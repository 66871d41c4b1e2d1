"""The contract of targets that stage, over the stand-in of the protocol's tests."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from sqlite_target import SqliteOptions
from tests.protocol.staging_world import StagingTarget
from wal_sink.targets.base import Target
from wal_sink.testing.contracts.rows import Record
from wal_sink.testing.contracts.staged import StagedContract


class TestStaging(StagedContract):
    """Files beside a table without a key."""

    @pytest.fixture
    def target(self, tmp_path: Path) -> StagingTarget:
        path = tmp_path / "shop.db"
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE t (k TEXT, n INTEGER, v INTEGER, t TEXT)")
        return StagingTarget(SqliteOptions(path=str(path), table="t"))

    def records(self, target: Target) -> list[Record]:
        assert isinstance(target, StagingTarget)
        with sqlite3.connect(target.options.path) as connection:
            return connection.execute("SELECT k, n, v, t FROM t").fetchall()
