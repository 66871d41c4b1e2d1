"""The contract of staged targets, over staged files and a SQLite table."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.contract import test_sqlite_target as sqlite
from tests.contract.staging_target import StagingSession, StagingTarget
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.targets.base import Session
from wal_sink.testing.contracts import RestartContract, StagedContract


class ServedStaging(sqlite.Served, StagingTarget):
    session: type[Any] = StagingSession

    def connect(self, query_id: str) -> Session:
        self.folder.mkdir(exist_ok=True)
        session: Session = self.session(self, query_id)
        return session


class TestStaging(StagedContract, RestartContract):
    kind: type[ServedStaging] = ServedStaging

    target = sqlite.TestSqlite.target
    records = sqlite.TestSqlite.records
    restart = sqlite.TestSqlite.restart

    def conflict_after_commit(
        self, patch: pytest.MonkeyPatch, landed: Callable[[], object]
    ) -> None:
        real = StagingSession.finish

        def finish(
            self: StagingSession,
            current: LedgerRow | None,
            new: LedgerRow,
            receipts: Sequence[bytes] = (),
        ) -> Outcome:
            patch.setattr(StagingSession, "finish", real)
            real(self, current, new, receipts)
            landed()
            raise sqlite3.OperationalError("database is locked")

        patch.setattr(StagingSession, "finish", finish)
