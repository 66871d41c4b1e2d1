"""Every type in every shape, through check and encode, compared with the driver's bytes and values."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest
from cassandra.query import UNSET_VALUE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.cql_driver import decoded, driver_rows, encode_from, plan_of_column
from tests.support.cql_values import (
    FIELDS,
    SCALARS,
    Case,
    decimals,
    expected,
    plain,
    shapes,
    type_name,
    whole,
)
from wal_sink.targets.cassandra.rows import check
from wal_sink.targets.cassandra.types import NESTED, TYPES, UserTypes

US = 1_700_000_000_000_000
TWO: UserTypes = {type_name(item): tuple((name, item.cql) for name in FIELDS) for item in SCALARS}
TREE: UserTypes = {
    "leaf": (("n", "varint"), ("d", "decimal")),
    "inner": (("leaves", "frozen<list<frozen<leaf>>>"), ("by", "frozen<map<inet, blob>>")),
}


def compare(column: pa.Array, cql: str, nulls: str, protocol: int, types: UserTypes) -> list[Any]:
    """Compare the encoding of a column with the driver's bytes.

    Return the values that the driver decodes.
    """
    ids = pa.array(range(len(column)), pa.int32())
    planned = plan_of_column(cql, column.type, nulls, types)
    stored = check(pa.record_batch({"id": ids, "c": column}), planned)
    stored = pa.concat_batches([stored, stored, stored])[len(stored) : 2 * len(stored)]
    encoded = encode_from(stored, planned, US)
    rows = [row.wire for row in driver_rows(stored, planned, US, protocol=protocol)]
    raw = encoded.data.to_pybytes()
    assert [raw[i:j] for i, j in itertools.pairwise(encoded.offsets)] == rows
    assert raw == b"".join(rows), "nothing between the rows"
    return [row.values["c"] for row in decoded(encoded, planned)]


def test_every_type_has_a_case() -> None:
    assert {case.cql for case in SCALARS} == set(TYPES)
    whole_kinds = {shape.cql.removeprefix("frozen<").split("<")[0] for shape in shapes(SCALARS[0])}
    assert {"list", "set", "map", "tuple"} == set(NESTED) & whole_kinds, "udt and vector are below"


@pytest.mark.parametrize("case", SCALARS, ids=lambda case: f"{case.cql} {case.arrow}")
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), protocol=st.sampled_from([4, 5]), nulls=st.sampled_from(["unset", "write"]))
def test_type_alone_or_nested_is_encoded_as_by_driver(
    case: Case, data: st.DataObject, protocol: int, nulls: str
) -> None:
    """The parts are in collections, tuples and user-defined types, some of them frozen."""
    for shape in shapes(case):
        values = data.draw(st.lists(shape.values, max_size=5) | st.lists(st.none() | shape.values))
        result = compare(shape.array(values), shape.cql, nulls, protocol, TWO)
        without = None if nulls == "write" else UNSET_VALUE
        in_place = shape.cql.startswith(("list", "set", "map"))
        for value, back in zip(values, result, strict=True):
            if value is None:
                assert back is without
            else:
                read = plain(back)
                assert (read or None if in_place else read) == expected(shape, value)


LEAF = st.none() | st.fixed_dictionaries({"n": st.none() | decimals(0), "d": decimals(2, 9)})
INNER = st.none() | st.fixed_dictionaries(
    {
        "leaves": st.none() | st.lists(LEAF.filter(bool), max_size=3),
        "by": st.none()
        | st.lists(st.tuples(st.ip_addresses().map(str), st.binary(max_size=5)), max_size=3),
    }
)
INNER_ARROW = pa.struct(
    [
        (
            "leaves",
            pa.list_(pa.struct([("n", pa.decimal128(38, 0)), ("d", pa.decimal128(38, 2))])),
        ),
        ("by", pa.map_(pa.string(), pa.binary())),
    ]
)
DEEP: list[tuple[str, pa.DataType, st.SearchStrategy[Any]]] = [
    ("frozen<inner>", INNER_ARROW, INNER),
    ("frozen<tuple<frozen<inner>, int>>", pa.struct([("a", INNER_ARROW), ("b", pa.int32())]),
     st.none() | st.fixed_dictionaries({"a": INNER, "b": st.none() | whole(32)})),
    ("map<text, frozen<list<frozen<inner>>>>", pa.map_(pa.string(), pa.list_(INNER_ARROW)),
     st.none() | st.lists(st.tuples(st.text(max_size=3), st.lists(INNER.filter(bool), max_size=2)),
                          max_size=2)),
    ("set<frozen<set<frozen<map<int, double>>>>>",
     pa.list_(pa.list_(pa.map_(pa.int32(), pa.float64()))),
     st.none() | st.lists(st.lists(st.lists(st.tuples(whole(32), st.floats()), max_size=2),
                                   max_size=2), max_size=2)),
    ("vector<float, 3>", pa.list_(pa.float32()),
     st.none() | st.lists(st.floats(width=32), min_size=3, max_size=3)),
    ("frozen<list<vector<float, 1>>>", pa.list_(pa.list_(pa.float32())),
     st.none() | st.lists(st.lists(st.floats(width=32), min_size=1, max_size=1), max_size=3)),
]  # fmt: skip


@pytest.mark.parametrize(("cql", "arrow", "strategy"), DEEP, ids=lambda item: str(item)[:30])
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_nested_nulls_are_encoded_at_each_level(
    cql: str, arrow: pa.DataType, strategy: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    values = data.draw(st.lists(strategy, max_size=4))
    compare(pa.array(values, arrow), cql, "write", 5, TREE)
