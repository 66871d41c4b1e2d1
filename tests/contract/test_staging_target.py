"""The contract of targets that stage, over the stand-in of the protocol's tests."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.contract import test_sqlite_target as sqlite
from tests.protocol.staging_world import StagingSession, StagingTarget
from wal_sink.model.ledger import LedgerState, Outcome, Owner
from wal_sink.targets.base import Session
from wal_sink.testing.contracts.restart import RestartContract
from wal_sink.testing.contracts.staged import StagedContract


class ServedStaging(sqlite.Served, StagingTarget):
    """Files beside a table of SQLite."""

    session: type[Any] = StagingSession

    def connect(self, owner: Owner) -> Session:
        self.folder.mkdir(exist_ok=True)
        session: Session = self.session(self, owner)
        return session


class TestStaging(StagedContract, RestartContract):
    """A table without a key."""

    kind: type[ServedStaging] = ServedStaging

    target = sqlite.TestSqlite.target
    records = sqlite.TestSqlite.records
    doubles = sqlite.TestSqlite.doubles
    restart = sqlite.TestSqlite.restart

    def conflict_after_commit(
        self, patch: pytest.MonkeyPatch, landed: Callable[[], object]
    ) -> None:
        real = StagingSession.commit

        def commit(
            self: StagingSession,
            seen: LedgerState | None,
            new: LedgerState,
            receipts: Sequence[bytes],
        ) -> Outcome:
            patch.setattr(StagingSession, "commit", real)
            real(self, seen, new, receipts)
            landed()
            raise sqlite3.OperationalError("database is locked")

        patch.setattr(StagingSession, "commit", commit)
