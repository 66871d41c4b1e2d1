"""A failure before and after each access of a flusher to the table."""

from __future__ import annotations

import contextlib
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
    """Flush an epoch over a new session, which a crash leaves open."""
    session = query.connect()
    for _ in range(10):
        row = row_of(session)
        if row.epoch == 0:
            session.close()
            return
        session.write(plan, query.slice(batch([("a", 1), ("a", 7)]), plan))
        receipts = session.drain()
        assert finish(session, row, following(row), receipts) is not Outcome.CONFLICT
    raise AssertionError("the epoch is not flushed after ten tries")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("error", [Crash, ConnectionError])
def test_failure_at_any_access_adds_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], when: When
) -> None:
    """The flusher crashes, or the store fails once, before or after each access. Then a flusher continues."""
    hit = []
    for k in count():
        path = str(tmp_path / str(k))
        DeltaTable.create(path, SCHEMA)
        query = Query(path)
        plan = query.plan()
        faults = Faults(at=k, when=when, error=error)
        with monkeypatch.context() as patched:
            inject(patched, faults)
            with contextlib.suppress(error, TargetUnavailable):
                flush(query, plan)
        assert sorted(row["v"] for row in table_of(path)) in ([], [1, 7]), (k, faults.injected)
        flush(query, plan)
        assert sorted(row["v"] for row in table_of(path)) == [1, 7], (k, faults.injected)
        assert row_of(query.session).epoch == 0
        ledger = [*(Path(path) / "_wal_sink" / query.query_id).iterdir()]
        assert len(ledger) <= 2, "a failure leaves one file at most"
        if faults.injected is None:
            break
        hit.append(faults.injected)
    assert {name for names in ACCESSES.values() for name in names} - {*hit} == set()
    assert len(hit) > 15
    covered(f"{error.__name__} at every access to a Delta table, {when}", f"{len(hit)}")
