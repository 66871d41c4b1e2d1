"""A crash before, and after, each access of a flusher to the table; then another flusher goes on."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any, Literal

import pytest
from deltalake import DeltaTable

from tests.delta.conftest import SCHEMA, Query, batch, table_of
from tests.protocol.cases import covered
from wal_sink.errors import TargetUnavailable
from wal_sink.model.ledger import Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.delta.files import Files
from wal_sink.targets.delta.table import Table
from wal_sink.testing.contracts.ledger import finish, following, row_of
from wal_sink.testing.faults import Crash, Faults

ACCESSES: dict[type, tuple[str, ...]] = {
    Files: ("write", "read", "delete", "missing", "sync"),
    Table: ("commit", "refresh", "_opened"),
}

When = Literal["before", "after"]


def inject(monkeypatch: pytest.MonkeyPatch, faults: Faults) -> None:
    for kind, names in ACCESSES.items():
        for name in names:
            real = getattr(kind, name)

            def access(
                self: Any, *args: Any, _real: Any = real, _name: str = name, **named: Any
            ) -> Any:
                return faults.call(_name, lambda: _real(self, *args, **named))

            monkeypatch.setattr(kind, name, access)


def flush(query: Query, plan: Plan) -> None:
    """Flush an epoch as a flusher does, over a session of its own, which a crash leaves open."""
    session = query.connect()
    for _ in range(10):
        row = row_of(session)
        if row.epoch == 0:
            session.close()
            return
        session.write(plan, query.slice(batch([("a", 1), ("a", 7)]), plan))
        receipts = session.drain()
        assert finish(session, row, following(row), receipts) is not Outcome.CONFLICT
    raise AssertionError("it does not come to its end")


@pytest.mark.parametrize("when", ["before", "after"])
def test_crash_at_every_access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: When) -> None:
    """Each row is in the table once, whatever was done by then."""
    hit = []
    for k in count():
        path = str(tmp_path / str(k))
        DeltaTable.create(path, SCHEMA)
        query = Query(path)
        plan = query.plan()
        faults = Faults(at=k, when=when, error=Crash)
        with monkeypatch.context() as patched:
            inject(patched, faults)
            try:
                flush(query, plan)
            except Crash:
                assert faults.injected
        assert sorted(row["v"] for row in table_of(path)) in ([], [1, 7]), (k, faults.injected)
        flush(query, plan)
        assert sorted(row["v"] for row in table_of(path)) == [1, 7], (k, faults.injected)
        assert row_of(query.session).epoch == 0
        ledger = [*(Path(path) / "_wal_sink" / query.query_id).iterdir()]
        assert len(ledger) <= 2, "a crash leaves one file at most"
        if faults.injected is None:
            break
        hit.append(faults.injected)
    assert {name for names in ACCESSES.values() for name in names} - {*hit} == set()
    assert len(hit) > 15
    covered(f"crash at every access to a Delta table, {when}", f"{len(hit)}")


@pytest.mark.parametrize("when", ["before", "after"])
def test_store_that_fails_at_every_access(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: When
) -> None:
    """The session goes on, as after an outage; the flusher meets an error, or an answer that is unknown."""
    for k in count():
        path = str(tmp_path / str(k))
        DeltaTable.create(path, SCHEMA)
        query = Query(path)
        plan = query.plan()
        faults = Faults(at=k, when=when, error=ConnectionError)
        with monkeypatch.context() as patched:
            inject(patched, faults)
            for _ in range(3):
                try:
                    flush(query, plan)
                except (ConnectionError, TargetUnavailable):
                    continue
                break
        assert sorted(row["v"] for row in table_of(path)) == [1, 7], (k, faults.injected)
        assert row_of(query.session).epoch == 0
        if faults.injected is None:
            break
