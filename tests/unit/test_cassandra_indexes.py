"""What indexes refuse: rules from what the server says of them, and rules applied to columns."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from cassandra import InvalidRequest, OperationTimedOut, WriteFailure
from cassandra.cluster import NoHostAvailable
from cassandra.query import UNSET_VALUE

from tests.cql_driver import Field, plan_of
from wal_sink.errors import InvalidRow, TargetRefused
from wal_sink.model.plan import Column, Plan
from wal_sink.targets.cassandra.check import check
from wal_sink.targets.cassandra.driver.errors import is_refused, may_be_a_row
from wal_sink.targets.cassandra.driver.frames import EncodedBatch, statement_head
from wal_sink.targets.cassandra.driver.internals import ServerError
from wal_sink.targets.cassandra.row_plan import CassandraPlan, IndexedPart, IndexRule
from wal_sink.targets.cassandra.rules import LEAST, MOST, InvalidValue, refused
from wal_sink.targets.cassandra.table import IndexMetadata, TermLimits, index_rules, term_limits
from wal_sink.targets.cassandra.write.refusals import Refusals, find_refused, refusal

FLOATS = pa.list_(pa.float32())
TEXTS = pa.list_(pa.string())
MAP = pa.map_(pa.string(), pa.string())


def columns(**types: str) -> list[Column]:
    found = {"id": "int", **types}
    return [
        Column(name=name, source="null", type=cql, role="partition" if name == "id" else "regular")
        for name, cql in found.items()
    ]


def rules(cql: str, target: str, kind: str = "CUSTOM", **options: str) -> tuple[IndexRule, ...]:
    """Return the rules of one index on a column `c`."""
    given = {"target": target, **({"class_name": "sai"} if kind == "CUSTOM" else {}), **options}
    index = IndexMetadata("by_c", kind, given)
    return index_rules([index], columns(c=cql), {"place": (("x", "text"),)}, TermLimits(10, 20, 30))


@pytest.mark.parametrize(
    ("cql", "target", "part", "most"),
    [
        ("text", "c", "value", 10),
        ("ascii", "c", "value", 10),
        ("frozen<list<int>>", "full(c)", "value", 20),
        ("tuple<int, text>", "c", "value", 20),
        ("frozen<place>", "c", "value", 20),
        ("set<text>", "values(c)", "elements", 10),
        ("set<frozen<list<text>>>", "values(c)", "elements", 20),
        ("map<text, int>", "keys(c)", "keys", 10),
        ("map<int, text>", "values(c)", "values", 10),
        ("map<text, text>", "entries(c)", "entries", 10),
    ],
)
def test_terms(cql: str, target: str, part: IndexedPart, most: int) -> None:
    """The part that is indexed, and the limit of its type: what 5.0 wrote to `system_schema.indexes`."""
    assert rules(cql, target) == (IndexRule("c", "by_c", part, most),)


@pytest.mark.parametrize(
    ("cql", "target", "part"),
    [
        ("text", "c", "value"),
        ("blob", "c", "value"),
        ("frozen<map<text, text>>", "full(c)", "value"),
        ("set<text>", "values(c)", "elements"),
        ("map<text, text>", "values(c)", "values"),
        ("map<text, text>", "keys(c)", "keys"),
        ("map<text, text>", "entries(c)", "entries"),
    ],
)
def test_indexes_in_a_table_of_their_own(cql: str, target: str, part: IndexedPart) -> None:
    """What is indexed is a key there; KEYS is the kind of old ones."""
    for kind in "COMPOSITES", "KEYS":
        assert rules(cql, target, kind) == (IndexRule("c", "by_c", part, 65_534),)


@pytest.mark.parametrize(
    ("options", "required"),
    [
        ({}, "cosine"),
        ({"similarity_function": "COSINE"}, "cosine"),
        ({"similarity_function": "DOT_PRODUCT"}, "finite"),
        ({"similarity_function": "euclidean"}, "finite"),
        ({"source_model": "ada002"}, "finite"),
        ({"class_name": "StorageAttachedIndex"}, "cosine"),
        ({"class_name": "org.apache.cassandra.index.sai.StorageAttachedIndex"}, "cosine"),
    ],
)
def test_vectors(options: dict[str, str], required: Any) -> None:
    """Cosine is what there is without a word; a model may imply something else."""
    found = rules("vector<float, 2>", "c", **options)
    assert found == (IndexRule("c", "by_c", "value", 30, required),)


@pytest.mark.parametrize(
    ("cql", "target", "kind", "options"),
    [
        ("int", "c", "CUSTOM", {}),
        ("decimal", "c", "COMPOSITES", {}),
        ("map<int, text>", "keys(c)", "COMPOSITES", {}),
        ("text", "d", "CUSTOM", {}),
        ("text", '{"pk":["id"],"ck":["c"]}', "COMPOSITES", {}),
        ("text", "c", "CUSTOM", {"class_name": "org.apache.cassandra.index.sasi.SASIIndex"}),
        ("text", "c", "CUSTOM", {"index_analyzer": "standard"}),
        ("vector<float, 2>", "c", "CUSTOM", {"class_name": "vector_index"}),
    ],
)
def test_nothing_is_refused(cql: str, target: str, kind: str, options: dict[str, str]) -> None:
    """Short values; a column that is not written; an index of which nothing is known; words of a text."""
    assert rules(cql, target, kind, **options) == ()


def test_names_in_quotes() -> None:
    """As the server prints a name that is not lower case."""
    index = IndexMetadata("i", "COMPOSITES", {"target": 'values("At ""x""")'})
    found = index_rules([index], columns(**{'At "x"': "set<text>"}), {}, TermLimits())
    assert [(rule.column, rule.part) for rule in found] == [('At "x"', "elements")]


def test_the_servers_own_limits() -> None:
    """Where it says them; off is off."""
    name = "sai_{}_term_size_fail_threshold".format
    assert term_limits(None) == term_limits({}) == TermLimits(8_192, 8_192, 32_768)
    settings = {name("string"): "1KiB", name("frozen"): None, name("vector"): "2MiB"}
    assert term_limits(settings) == (1_024, 0, 2_097_152)
    assert term_limits({name("string"): "100B"}).text == 100


def first_refused(rule: IndexRule, stored: pa.Array) -> InvalidValue | None:
    return next(refused(rule, stored, "key"), None)


@pytest.mark.parametrize(
    ("part", "kind", "values"),
    [
        ("value", pa.string(), ["xxxx", None, "xxxxx"]),
        ("value", pa.string(), ["éé", "", "éé."]),
        ("elements", TEXTS, [["a", "xxxx"], None, ["a", "xxxxx"]]),
        ("elements", TEXTS, [[], ["xxxx"] * 9, ["xxxxx", "a"]]),
        ("keys", MAP, [[("xxxx", "yyyyyy")], [], [("a", None), ("xxxxx", None)]]),
        ("values", MAP, [[("xxxxx", "yyyy")], None, [("a", None), ("b", "yyyyy")]]),
    ],
)
def test_sizes(part: IndexedPart, kind: pa.DataType, values: list[Any]) -> None:
    """The first row with one that is too long, by its bytes."""
    rule = IndexRule("c", "by_c", part, 4)
    for column in (pa.array(values, kind), pa.array([None, *values], kind)[1:]):
        found = first_refused(rule, column)
        assert found is not None
        assert found.row == 2
        assert "4 bytes that the index by_c takes" in found.problem
        assert first_refused(rule, column[:2]) is None
    assert first_refused(rule, pa.array([], kind)) is None


def test_entries() -> None:
    """Key, value and six bytes between them."""
    rule = IndexRule("c", "by_c", "entries", 10)
    found = first_refused(rule, pa.array([[("aa", "bb")], [("aa", "b"), ("aaa", "bb")]], MAP))
    assert found is not None
    assert (found.row, "an entry of" in found.problem) == (1, True)


def test_what_vectors_need() -> None:
    """Finite elements; to be compared by cosine, one that is not next to nothing. A null is no vector."""
    values = [None, [MOST * 0.99, 0.0], [LEAST * 1.01, 0.0], [-1.0, 0.0], [0.0, -0.0]]
    column = pa.array(values, FLOATS)
    assert first_refused(IndexRule("c", "i", vector="finite"), column) is None
    assert first_refused(IndexRule("c", "i", vector="cosine"), column[:4]) is None
    found = first_refused(IndexRule("c", "i", vector="cosine"), column)
    assert found is not None
    assert found.row == 4
    for bad in math.nan, math.inf, -math.inf, MOST * 1.01, -MOST * 1.01:
        found = first_refused(
            IndexRule("c", "i", vector="finite"), pa.array([None, [1.0, bad]], FLOATS)
        )
        assert found is not None
        assert found.row == 1


def test_a_plan_keeps_its_rules() -> None:
    """One without rules lets everything pass."""
    rule = IndexRule("c", "by_c", most_bytes=4)
    batch = pa.record_batch({"id": pa.array([1, 2], pa.int32()), "c": ["xxxx", "xxxxx"]})
    fields: tuple[Field, ...] = (
        ("id", "partition", "int", pa.int32()),
        ("c", "regular", "text", pa.string()),
    )
    check(batch, plan_of(*fields))
    logged = plan_of(*fields, indexes=(rule,)).plain.to_json()
    hostile = msgspec.structs.replace(
        Plan.from_json(logged, "plans/k.json"), table="ks.t; DROP TABLE x"
    )
    kept = CassandraPlan.of(hostile)
    assert kept.table == '"ks"."t"', "it stands in statements"
    assert kept.details.indexes == (rule,)
    with pytest.raises(
        InvalidRow, match=r"Column c of .*'xxxxx'.* index by_c takes, in the row with id=2\."
    ):
        check(batch, kept)
    check(batch[:1], kept)


# --- the row that is refused ----------------------------------------------------------------------


def failure(*reasons: int) -> Exception:
    codes = {f"10.0.0.{i}": code for i, code in enumerate(reasons)}
    error: Exception = WriteFailure("no", error_code_map=codes)
    return error


def server_error() -> Any:
    return ServerError(0x0000, "java.lang.IllegalArgumentException", None)


def test_whose_fault_it_may_be() -> None:
    """UNKNOWN from each replica that failed, or an exception in the coordinator; not an overload."""
    assert may_be_a_row(failure(0, 0))
    assert may_be_a_row(WriteFailure("before version 5"))
    assert may_be_a_row(server_error())
    assert may_be_a_row(NoHostAvailable("none", {"a": server_error(), "b": server_error()}))
    for other in failure(0, 2), OperationTimedOut(), InvalidRequest("x"), NoHostAvailable("", {}):
        assert not may_be_a_row(other)
    assert is_refused(InvalidRequest("x"))
    assert is_refused(NoHostAvailable("none", {"a": InvalidRequest("x")}))
    assert not is_refused(failure(0))
    assert not is_refused(NoHostAvailable("none", {}))


def encoded(*ids: int) -> EncodedBatch:
    """A batch of rows with a key, a null and an unset value, and a timestamp."""
    values = [(i.to_bytes(4, "big"), -1, -2, bytes(8)) for i in ids]
    data = b"".join(statement_head(b"q" * 16, 4) + b"".join(map(_encode, row)) for row in values)
    return EncodedBatch(len(ids), data, "ks", b"routing")


def _encode(value: Any) -> bytes:
    if isinstance(value, int):
        return value.to_bytes(4, "big", signed=True)
    return len(value).to_bytes(4, "big") + bytes(value)


def keys(request: Any) -> list[int]:
    """The rows of a request, by taking it apart."""
    parts = request.halves()
    if parts:
        assert all((part.keyspace, part.routing_key) == ("ks", b"routing") for part in parts)
        return [key for part in parts for key in keys(part)]
    query_id, values = next(request.statements())
    assert (query_id, values[1:]) == (b"q" * 16, [None, UNSET_VALUE, bytes(8)])
    assert values[0] is not None
    return [int.from_bytes(values[0], "big")]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 600])
def test_a_request_is_taken_apart(count: int) -> None:
    """Every row is in one part, in its order, with its bytes."""
    assert keys(encoded(*range(count))) == list(range(count))


def test_no_row_is_taken() -> None:
    """Nothing tells the row from its neighbours; no more than a few parts are sent."""
    sent = []

    def send(request: Any) -> Exception | None:
        sent.append(request)
        return failure(0)

    found = next(find_refused(encoded(*range(600)), failure(0), send))
    assert found is not None
    assert (keys(found.request), found.others_are_taken) == ([0], False)
    assert len(sent) <= 2 * 10


TOO_LARGE: Exception = InvalidRequest("Batch too large")


def test_no_row_is_to_blame() -> None:
    """Each part is taken by itself, and all are sent; a row alone is its own part; an outage is no answer."""
    sent = []

    def small(request: Any) -> Exception | None:
        if len(keys(request)) > 30:
            return TOO_LARGE
        sent.extend(keys(request))
        return None

    assert list(find_refused(encoded(*range(600)), TOO_LARGE, small)) == []
    assert sent == list(range(600))
    alone = next(find_refused(encoded(5), failure(0), small))
    assert alone is not None
    assert (keys(alone.request), alone.others_are_taken) == ([5], False)
    with pytest.raises(OperationTimedOut):
        list(find_refused(encoded(1, 2), failure(0), lambda _: OperationTimedOut()))


def test_what_is_said_of_the_row() -> None:
    """Who refuses it, and what to do; also where it is too old for the server."""
    refused = refusal("the row with id=1", InvalidRequest("Cannot index value of size 70000"))
    assert isinstance(refused, TargetRefused)
    assert "Cassandra refuses the row with id=1: InvalidRequest: Cannot index" in refused.what
    failed = refusal("the row with id=1", failure(0))
    assert "fails to write the row with id=1, and takes other rows: WriteFailure" in failed.what
    assert "DROP INDEX" in failed.remedy
    assert refused.remedy == "Change in the table what refuses it."
    old = refusal("r", InvalidRequest("timestamp 1 is below the minimum allowable timestamp 2"))
    assert "longest outage" in old.remedy


def looked(
    bad: set[int], error: Exception, count: int = 600, *, takes_others: bool = False
) -> tuple[list[int], int | None, list[list[int]]]:
    """Return which rows of a request are passed over, their number, and what was sent."""
    passed: list[int] = []
    sent: list[list[int]] = []

    def send(request: Any) -> Exception | None:
        sent.append(keys(request))
        return error if bad.intersection(sent[-1]) else None

    refusals = Refusals(lambda request: f"row {keys(request)}", send, lambda: takes_others)
    refusals.on_refused = lambda request, _: passed.extend(keys(request))
    return passed, refusals.look(encoded(*range(count)), error), sent


@pytest.mark.parametrize("error", [failure(0), InvalidRequest("Cannot index value of size 70000")])
def test_every_refused_row_is_passed_over_and_every_other_one_sent(error: Exception) -> None:
    """In one look: a row costs its bisection, and those behind it wait no longer (rule 24)."""
    bad = {0, 7, 300, 599}
    passed, number, sent = looked(bad, error)
    assert (sorted(passed), number) == (sorted(bad), len(bad))
    taken = {key for part in sent if not bad.intersection(part) for key in part}
    assert taken == set(range(600)) - bad
    assert len(sent) <= 2 * 10 * len(bad) + 2


def test_where_no_row_is_taken_none_is_passed_over() -> None:
    """It is the table, a permission or a guardrail that refuses; a lone row is believed once (rule 24)."""
    every = set(range(600))
    with pytest.raises(TargetRefused, match=r"row \[1\]"):
        looked(every, InvalidRequest("Write consistency level ONE is not allowed"))
    assert looked({0}, InvalidRequest("no"), count=1)[:2] == ([0], 1)
    assert looked(every, failure(0))[:2] == ([], None)
    assert looked({0}, failure(0), count=1, takes_others=True)[:2] == ([0], 1)


@pytest.mark.parametrize(
    "said",
    [
        "unconfigured table t",
        "Keyspace 'ks' doesn't exist",
        "table t does not exist",
        "keyspace ks does not exist",
        "Undefined column name v in table ks.t",
    ],
)
@pytest.mark.parametrize(
    "form", ["{}", 'Error from server: code=2200 [Invalid query] message="{}"']
)
def test_a_node_that_lacks_the_table_blames_no_row(said: str, form: str) -> None:
    """One that has joined just now, say: rows that another one takes go into quarantine for nothing less."""
    lagging = InvalidRequest(form.format(said))
    assert looked({0, 7}, lagging)[:2] == ([], None)
    assert looked({0}, lagging, count=1)[:2] == ([], None)


def test_a_row_that_is_too_old_for_the_server_is_not_passed_over() -> None:
    """So is every other row of its epoch, and of those that waited as long."""
    old = InvalidRequest("timestamp 1 is below the minimum allowable timestamp 2")
    with pytest.raises(TargetRefused):
        looked({3}, old)
