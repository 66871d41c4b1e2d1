"""The ledger on a real node, beside the contract suites."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.support.cassandra import target_of
from wal_sink.demo.cassandra import Node
from wal_sink.errors import CorruptLog
from wal_sink.model.ledger import Outcome
from wal_sink.targets.base import Session
from wal_sink.testing.contracts.ledger import create, finish, following, row_of

pytestmark = pytest.mark.cassandra

QUERY = "query 1"


@pytest.fixture
def session(cassandra: Node, keyspace: str) -> Iterator[Session]:
    """A session whose ledger has no row yet."""
    cassandra.execute(f"CREATE TABLE {keyspace}.t (id int PRIMARY KEY)")
    target = target_of(cassandra, keyspace)
    target.plan(pa.schema([("id", pa.int32())]), "k")
    with target.connect(QUERY) as session:
        yield session


def row(node: Node, keyspace: str) -> dict[str, Any]:
    rows = node.execute(f"SELECT * FROM {keyspace}.wal_sink_ledger")
    assert len(rows) == 1
    return dict(rows[0]._asdict())


def test_ledger_row_has_four_columns(cassandra: Node, keyspace: str, session: Session) -> None:
    """docs/cassandra.md documents them."""
    current = create(session, QUERY, 6)
    assert row(cassandra, keyspace) == {
        "query_id": QUERY,
        "log_id": "log",
        "epoch": 6,
        "digest": "",
    }
    new = following(current, 3)
    assert finish(session, current, new) is Outcome.APPLIED
    moved = {"query_id": QUERY, "log_id": "log", "epoch": 9, "digest": new.digest}
    assert row(cassandra, keyspace) == moved


def test_window_costs_one_conditional_update(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    current = create(session, QUERY)
    ledger: Any = session._ledger  # type: ignore[attr-defined]
    execute, statements = ledger._execute, list[str]()

    def note(statement: str, *arguments: Any) -> Any:
        statements.append(statement.split(maxsplit=1)[0])
        return execute(statement, *arguments)

    monkeypatch.setattr(ledger, "_execute", note)
    for _ in range(3):
        current, earlier = following(current), current
        assert finish(session, earlier, current) is Outcome.APPLIED
    assert statements == ["UPDATE"] * 3


def test_ledger_row_outlives_the_default_ttl(
    cassandra: Node, keyspace: str, session: Session
) -> None:
    cassandra.execute(f"ALTER TABLE {keyspace}.wal_sink_ledger WITH default_time_to_live = 1000")
    current = create(session, QUERY)
    finish(session, current, following(current))
    ttls = cassandra.execute(
        f"SELECT ttl(log_id), ttl(epoch), ttl(digest) FROM {keyspace}.wal_sink_ledger"
    )
    assert set(ttls[0]) == {None}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        *[
            (f"UPDATE {{}} SET digest = '{digest}' WHERE query_id = '{QUERY}'", "query 1 ")
            for digest in ("d+", "d+x", "d+1+2")
        ],
        (f"INSERT INTO {{}} (query_id, epoch) VALUES ('{QUERY}', null)", "None"),
    ],
)
def test_invalid_ledger_row_is_refused(
    cassandra: Node, keyspace: str, session: Session, change: str, words: str
) -> None:
    create(session, QUERY)
    cassandra.execute(change.format(f"{keyspace}.wal_sink_ledger"))
    with pytest.raises(CorruptLog, match=words) as refused:
        session.read()
    assert "wal_sink_ledger" in refused.value.what


def test_too_few_replicas_make_an_update_unknown(
    cassandra: Node, keyspace: str, session: Session
) -> None:
    """A coordinator may raise `Unavailable` before it starts, or after a proposal was accepted."""
    current = create(session, QUERY)
    replication = (
        f"ALTER KEYSPACE {keyspace} WITH replication = "
        "{'class': 'SimpleStrategy', 'replication_factor': %d}"
    )
    cassandra.execute(replication % 3)
    assert finish(session, current, following(current)) is Outcome.UNKNOWN
    cassandra.execute(replication % 1)
    assert row_of(session) == current
    assert finish(session, current, following(current)) is Outcome.APPLIED
