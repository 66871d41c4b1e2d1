"""`cassandra.ifNotExists`: the option, the statement, which rows are sent, and in which order."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tests.cql_driver import Field, binding, plan_of, prepared
from tests.unit.test_cassandra_compare import COLUMNS, live
from tests.unit.test_cassandra_fitness import CASSANDRA, SCYLLA, TWO
from tests.unit.test_cassandra_fitness import options as fitness_options
from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Column, WriteDemands
from wal_sink.targets.cassandra.compare import Wanted
from wal_sink.targets.cassandra.driver.frames import EncodedBatch
from wal_sink.targets.cassandra.feature import Agreement, Stamped
from wal_sink.targets.cassandra.features import demands, refuse_server
from wal_sink.targets.cassandra.features.if_not_exists import IfNotExists, first_of_each_key, rounds
from wal_sink.targets.cassandra.fitness import notices
from wal_sink.targets.cassandra.row_plan import CassandraRowPlan
from wal_sink.targets.cassandra.write.batches import (
    Limits,
    PreparedTable,
    Replicas,
    conditional_requests,
)
from wal_sink.targets.cassandra.write.in_flight import end_of
from wal_sink.targets.cassandra.write.statements import Statements

ABSENT = {"cassandra.ifNotExists": "true"}
FIELDS: tuple[Field, ...] = (
    ("v", "regular", "bigint", pa.int64()),
    ("n", "clustering", "int", pa.int32()),
    ("k", "partition", "text", pa.string()),
)
PLAN = plan_of(*FIELDS, keyspace="shop", table="orders", if_not_exists=True)
KEYS = [("a", 1), ("b", 1), ("a", 2), ("a", 1), ("b", 1), ("a", 3), ("c", 1)]


def rows(*keys: tuple[str, int]) -> Stamped:
    """Return rows of keys; each value is its place."""
    names, numbers = zip(*keys, strict=True) if keys else ((), ())
    arrays = [
        pa.array(range(len(keys)), pa.int64()),
        pa.array(numbers, pa.int32()),
        pa.array(names, pa.string()),
    ]
    return Stamped(pa.record_batch(arrays, names=["v", "n", "k"]), np.arange(len(keys)))


def test_static_columns_are_refused() -> None:
    """Each new row of a partition would write them, in no order."""
    static = Column(name="shop", source="string", type="text", role="static")
    agree(PLAN.columns)
    with pytest.raises(SchemaMismatch, match="static columns shop"):
        agree((*PLAN.columns, static))


def test_partition_keys_of_which_two_are_one_row_are_refused() -> None:
    """Rows of one partition are written one after the other; two partitions are not."""
    for role, refused in (("partition", True), ("clustering", False)):
        tags = Column(name="s", source="list<string>", type="frozen<set<text>>", role=role)  # type: ignore[arg-type]
        if not refused:
            agree((*PLAN.columns, tags))
            continue
        with pytest.raises(SchemaMismatch, match=r"s of .*in another order are one row"):
            agree((*PLAN.columns, tags))


def test_one_session_writes_the_rows_of_a_window() -> None:
    """Several would write them in no order; and the server dates them."""
    plain = plan_of(*FIELDS)
    assert demands([plain, PLAN]) == WriteDemands(one_session=True, target_dated=True)
    assert demands([plain]) == WriteDemands()


def test_the_first_row_of_each_key_is_sent() -> None:
    """The first one that lives; the others would change nothing."""
    assert first_of_each_key(rows(*KEYS), PLAN).tolist() == [0, 1, 2, 5, 6]
    lives = np.array([0, 9, 9, 9, -1, 9, 0])
    assert first_of_each_key(rows(*KEYS), PLAN, lives).tolist() == [1, 2, 3, 5]
    assert first_of_each_key(rows(), PLAN).tolist() == []


def test_a_partition_has_one_row_in_a_round() -> None:
    """In their order: the server agrees on one after the other, and more would be in each other's way."""
    found = rounds(rows(*KEYS), PLAN, np.array([0, 1, 2, 5, 6]))
    assert [each.tolist() for each in found] == [[0, 1, 6], [2], [5]]
    assert rounds(rows(), PLAN, np.array([], np.int64)) == []


@pytest.mark.parametrize("with_lives", [False, True])
def test_the_statement_has_a_condition_and_no_timestamp(*, with_lives: bool) -> None:
    """Cassandra takes no timestamp beside a condition; each row is a statement of the driver's own class."""
    statements = Statements(PLAN, prepared)
    assert statements.are_conditional
    lives = np.array([9, 8, 7, 6, 5, 4, 0]) if with_lives else None
    table = PreparedTable(PLAN, statements, Limits(), Replicas(None, "shop", "dc"))
    found = [*conditional_requests(table, rows(*KEYS), lives)]
    using = " USING TTL ?" if with_lives else ""
    query = f'INSERT INTO "shop"."orders" ("v", "n", "k") VALUES (?, ?, ?) IF NOT EXISTS{using}'
    bind = binding(*[each.prepared for each in statements.known()])
    made = [[bind(each) for each in requests] for requests in found]
    sent = [[int.from_bytes(each.values[0], "big") for each in requests] for requests in made]
    assert sent == ([[0, 1], [2], [5]] if with_lives else [[0, 1, 6], [2], [5]])
    for request in (each for requests in made for each in requests):
        assert request.prepared_statement.query_string == query
        assert request.is_idempotent
        assert len(request.values) == 3 + with_lives
    of = next(each for each in statements.known() if each.with_ttl == with_lives)
    assert [*range(3 + with_lives)][of.columns] == [0, 1, 2]


def agree(columns: tuple[Column, ...]) -> CassandraRowPlan:
    """Agree on rows of some columns of a table."""
    options = fitness_options(ifNotExists="true")
    agreed = Agreement(options, CASSANDRA, live(*COLUMNS), columns, Wanted())
    return IfNotExists().agree(PLAN.details, agreed)


def test_an_answer_says_whether_there_was_a_row() -> None:
    """Only that of a statement with a condition has a row."""
    request = EncodedBatch(1, b"", "ks", b"", is_conditional=True)
    assert [end_of(request, 0, rows).present for rows in (None, [], [(True,)])] == [0, 0, 0]
    assert end_of(request, 0, [(False, "a", 1)]).present == 1


def test_a_server_without_conditions_is_refused() -> None:
    """By the keyspace of the rows, too; and a start says what Paxos costs over several datacenters."""
    ledger = {"ledgerTable": "ledgers.wal_sink_ledger"}
    refuse_server(SCYLLA, fitness_options(**ledger))
    with pytest.raises(SchemaMismatch, match="Keyspace shop has tablets") as caught:
        refuse_server(SCYLLA, fitness_options(**ledger, ifNotExists="true"))
    assert "cassandra.ifNotExists" in caught.value.remedy
    far = CASSANDRA._replace(replication={"shop": TWO})
    assert not [*notices(far, fitness_options(**ledger))]
    (said,) = notices(far, fitness_options(**ledger, ifNotExists="true"))
    assert "each row (cassandra.ifNotExists) needs 3 of them" in said
