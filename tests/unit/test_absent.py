"""`cassandra.ifNotExists`: the option, the statement, which rows are sent, and in which order."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from cassandra import cqltypes
from cassandra.protocol import ColumnMetadata

from tests.unit.test_cassandra_compare import COLUMNS, live
from tests.unit.test_cassandra_fitness import CASSANDRA, SCYLLA, TWO
from tests.unit.test_cassandra_fitness import options as fitness_options
from tests.unit.test_write_mode import GIVEN, prepared
from wal_sink.configuration import configure
from wal_sink.errors import OptionError, SchemaMismatch
from wal_sink.model.plan import Column, Plan, plan_key
from wal_sink.targets.cassandra.row_plan import absent_details, as_planned, only_absent
from wal_sink.targets.cassandra.schema.compare import refuse_no_condition
from wal_sink.targets.cassandra.schema.plan import of_several
from wal_sink.targets.cassandra.schema.server import notices, refuse_unfit
from wal_sink.targets.cassandra.table_plans import table_plans
from wal_sink.targets.cassandra.write.in_flight import answered
from wal_sink.targets.cassandra.write.slices import Stamped
from wal_sink.targets.cassandra.write.statements import (
    Statements,
    absent_requests,
    first_of_each_key,
    rounds,
)

ABSENT = {"cassandra.ifNotExists": "true"}
PLAN = as_planned(
    Plan(
        key="k",
        target="cassandra",
        table='"shop"."orders"',
        columns=(
            Column(name="v", source="int64", type="bigint", role="regular"),
            Column(name="n", source="int32", type="int", role="clustering"),
            Column(name="k", source="string", type="text", role="partition"),
        ),
        details={"keyspace": "shop", "table": "orders", "nulls": "unset", **absent_details(True)},
    )
)
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


def test_the_option_is_part_of_the_plan() -> None:
    """Only where it is given; and the start says which row stays."""
    plain, absent = (configure(GIVEN | more).target for more in ({}, ABSENT))
    assert configure(GIVEN | {"cassandra.ifNotExists": "false"}).target.shape == plain.shape
    schema = rows().batch.schema
    assert plan_key(schema, "c", plain.shape) != plan_key(schema, "c", absent.shape)
    assert "the first row of a key" in absent.description["newest"]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("cassandra.timestampColumn", "at"),
        ("operationColumn", "op"),
        ("cassandra.writeMode", "update"),
        ("cassandra.collections.tags", "add"),
        ("cassandra.addColumns", "clicks"),
    ],
)
def test_what_contradicts_is_refused(option: str, value: str) -> None:
    """At the start, with a remedy; each alone is taken."""
    configure(GIVEN | {option: value})
    with pytest.raises(OptionError, match="are given together") as caught:
        configure(GIVEN | ABSENT | {option: value})
    assert "cassandra.ifNotExists" in caught.value.what
    assert "Leave out" in caught.value.remedy or "by a query of its own" in caught.value.remedy


def test_static_columns_are_refused() -> None:
    """Each new row of a partition would write them, in no order."""
    static = Column(name="shop", source="string", type="text", role="static")
    refuse_no_condition(live(*COLUMNS), PLAN.columns)
    with pytest.raises(SchemaMismatch, match="static columns shop"):
        refuse_no_condition(live(*COLUMNS), [*PLAN.columns, static])


def test_partition_keys_of_which_two_are_one_row_are_refused() -> None:
    """Rows of one partition are written one after the other; two partitions are not."""
    for role, refused in (("partition", True), ("clustering", False)):
        tags = Column(name="s", source="list<string>", type="frozen<set<text>>", role=role)  # type: ignore[arg-type]
        if not refused:
            refuse_no_condition(live(*COLUMNS), [*PLAN.columns, tags])
            continue
        with pytest.raises(SchemaMismatch, match=r"s of .*in another order are one row"):
            refuse_no_condition(live(*COLUMNS), [*PLAN.columns, tags])


def test_one_session_writes_the_rows_of_a_window() -> None:
    """Several would write them in no order; older flushers refuse the plan, also one for several tables."""
    assert PLAN.one_session
    assert PLAN.format > 1
    whole = as_planned(of_several([PLAN, PLAN], rows().batch.schema, ""))
    assert whole.one_session
    assert all(only_absent(each) for each in table_plans(whole))


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
    """Cassandra takes no timestamp beside a condition."""
    statements = Statements(PLAN, _prepared_with_types)
    lives = np.array([9, 8, 7, 6, 5, 4, 0]) if with_lives else None
    found = [*absent_requests(statements, rows(*KEYS), PLAN, lives)]
    using = " USING TTL ?" if with_lives else ""
    query = f'INSERT INTO "shop"."orders" ("v", "n", "k") VALUES (?, ?, ?) IF NOT EXISTS{using}'
    sent = [[int.from_bytes(each.values[0], "big") for each in requests] for requests in found]
    assert sent == ([[0, 1], [2], [5]] if with_lives else [[0, 1, 6], [2], [5]])
    for request in (each for requests in found for each in requests):
        assert request.prepared_statement.query_string == query
        assert request.is_idempotent
        assert len(request.values) == 3 + with_lives
    of = next(each for each in statements.known() if each.with_ttl == with_lives)
    assert [*range(3 + with_lives)][of.columns] == [0, 1, 2]


def _prepared_with_types(query: str) -> object:
    made = prepared(query)
    kinds = [cqltypes.LongType, cqltypes.Int32Type, cqltypes.UTF8Type, cqltypes.Int32Type]
    taken = kinds[: query.count("?")]
    made.column_metadata = [
        ColumnMetadata("shop", "orders", f"c{i}", k) for i, k in enumerate(taken)
    ]
    return made


def test_an_answer_says_whether_there_was_a_row() -> None:
    """Only that of a statement with a condition has a row."""
    assert [answered("s", 0, 1, 8, rows).present for rows in (None, [], [(True,)])] == [0, 0, 0]
    assert answered("s", 0, 1, 8, [(False, "a", 1)]).present == 1


def test_a_server_without_conditions_is_refused() -> None:
    """By the keyspace of the rows, too; and a start says what Paxos costs over several datacenters."""
    ledger = {"ledgerTable": "ledgers.wal_sink_ledger"}
    refuse_unfit(SCYLLA, fitness_options(**ledger))
    with pytest.raises(SchemaMismatch, match="Keyspace shop has tablets") as caught:
        refuse_unfit(SCYLLA, fitness_options(**ledger, ifNotExists="true"))
    assert "cassandra.ifNotExists" in caught.value.remedy
    far = CASSANDRA._replace(replication={"shop": TWO})
    assert not [*notices(far, fitness_options(**ledger))]
    (said,) = notices(far, fitness_options(**ledger, ifNotExists="true"))
    assert "each row (cassandra.ifNotExists) needs 3 of them" in said
