"""The ledger on a real node; what every target owes is in wal_sink.testing.contracts.cells."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.support.cassandra import target_of
from tests.support.records import begun_epoch
from wal_sink.errors import CorruptLog
from wal_sink.model.ledger import Outcome, Owner, Window
from wal_sink.protocol import ledger
from wal_sink.targets.base import Session
from wal_sink.testing.contracts.ledger import begin, create, finish, row_of
from wal_sink.testing.servers.cassandra import Node

pytestmark = pytest.mark.cassandra

OWNER = Owner("query 1", "log 1", "file:///checkpoint")


def window(first: int, epochs: int = 1) -> Window:
    begun = (begun_epoch(first + i, generation=2, rows=10, bytes=100) for i in range(epochs))
    return Window(nonce=uuid.uuid4().hex, begun_us=1, epochs=tuple(begun))


@pytest.fixture
def session(cassandra: Node, keyspace: str) -> Iterator[Session]:
    """A session whose ledger has no row yet."""
    cassandra.execute(f"CREATE TABLE {keyspace}.t (id int PRIMARY KEY)")
    target = target_of(cassandra, keyspace)
    target.plan(pa.schema([("id", pa.int32())]), "k")
    with target.connect(OWNER) as session:
        yield session


def row(node: Node, keyspace: str) -> dict[str, Any]:
    rows = node.execute(f"SELECT * FROM {keyspace}.wal_sink_ledger")
    assert len(rows) == 1
    return dict(rows[0]._asdict())


def test_the_row_as_others_see_it(cassandra: Node, keyspace: str, session: Session) -> None:
    """The columns that docs/cassandra.md documents, step by step."""
    create(session, 6, OWNER)
    fresh = {
        "query_id": "query 1",
        "log_id": "log 1",
        "checkpoint": "file:///checkpoint",
        "flushed": 6,
        "last_us": 0,
        "begun": "",
        "last": "",
    }
    assert row(cassandra, keyspace) == fresh
    several = window(7, epochs=3)
    assert begin(session, several) is Outcome.APPLIED
    assert row(cassandra, keyspace) == fresh | {"begun": several.to_text()}
    assert finish(session, several) is Outcome.APPLIED
    done = {"flushed": 9, "last_us": 9_009, "last": several.to_text()}
    assert row(cassandra, keyspace) == fresh | done


def test_the_row_outlives_the_tables_time_to_live(
    cassandra: Node, keyspace: str, session: Session
) -> None:
    """An administrator's default TTL must not make the sink forget."""
    cassandra.execute(f"ALTER TABLE {keyspace}.wal_sink_ledger WITH default_time_to_live = 1000")
    create(session)
    begin(session, first := window(0))
    finish(session, first)
    lives = cassandra.execute(
        "SELECT ttl(log_id), ttl(flushed), ttl(last_us), ttl(begun), ttl(last) "
        f"FROM {keyspace}.wal_sink_ledger"
    )
    assert set(lives[0]) == {None}


@pytest.mark.parametrize("column", ["begun", "last"])
@pytest.mark.parametrize("text", ["not json", "{}", '{"nonce": "n", "of_a_later_version": 1}'])
def test_a_text_that_the_sink_did_not_write(
    cassandra: Node, keyspace: str, session: Session, column: str, text: str
) -> None:
    """It stops the flush, naming the column, the row and the table."""
    create(session)
    cassandra.execute(
        f"UPDATE {keyspace}.wal_sink_ledger SET {column} = %s WHERE query_id = 'query 1'", [text]
    )
    with pytest.raises(CorruptLog, match=rf"query 1 .*wal_sink_ledger.*{column} cannot be read"):
        session.read_ledger()


def test_a_row_with_nulls(cassandra: Node, keyspace: str, session: Session) -> None:
    """Half a row is not taken for a fresh one."""
    cassandra.execute(f"INSERT INTO {keyspace}.wal_sink_ledger (query_id) VALUES ('query 1')")
    with pytest.raises(CorruptLog, match="nulls"):
        session.read_ledger()


def test_too_few_replicas(cassandra: Node, keyspace: str, session: Session) -> None:
    """A coordinator says `Unavailable` before it starts, and also after a proposal was accepted."""
    create(session)
    mine, seen = window(0), row_of(session)
    cassandra.execute(
        f"ALTER KEYSPACE {keyspace} WITH replication = "
        "{'class': 'SimpleStrategy', 'replication_factor': 3}"
    )
    assert session.compare_and_set(seen, ledger.begin(seen, mine)) is Outcome.UNKNOWN
    cassandra.execute(
        f"ALTER KEYSPACE {keyspace} WITH replication = "
        "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    )
    row = session.read_ledger()
    assert row is not None
    assert row.begun is None
    assert begin(session, mine) is Outcome.APPLIED
