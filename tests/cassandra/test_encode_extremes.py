"""The encoding of extreme values and of Arrow arrays with hidden bytes, compared with the driver's."""

from __future__ import annotations

import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.support.cql_driver import driver_rows, encode_from, plan_of
from wal_sink.targets.cassandra.row_plan import CassandraPlan

PAIR = {"pair": (("x", "int"), ("y", "text"))}
DAY = 86_400 * 10**9
INTS = pa.list_(pa.int32())
HIDDEN = [True, False, True, False]
"""The mask of `hide`."""


def plan(cql: str, nulls: str = "write", types: Any = None) -> CassandraPlan:
    """Plan a column c."""
    return plan_of(("c", "regular", cql, pa.null()), nulls=nulls, types=types or PAIR)


def same(cql: str, column: pa.Array) -> None:
    """Compare the encoding of a column and of its slices with the driver's bytes."""
    for nulls in ("write", "unset"):
        planned = plan(cql, nulls)
        for part in (column, column[1:], column[:0], column[1:1]):
            batch = pa.record_batch({"c": part})
            expected = b"".join(row.wire for row in driver_rows(batch, planned, key=()))
            assert encode_from(batch, planned, 0).data.to_pybytes() == expected


def around(powers: Any) -> list[int]:
    """Return the numbers next to powers of two, of both signs."""
    near = {sign * (2**p + d) for p in powers for d in (-1, 0, 1) for sign in (-1, 1)}
    return sorted({0, *near})


@pytest.mark.parametrize("cql", ["varint", "decimal"])
@pytest.mark.parametrize(
    ("arrow", "bits"), [(pa.decimal128(38, 0), 126), (pa.decimal256(76, 0), 252)]
)
def test_varint_of_any_width_is_encoded_as_by_driver(
    cql: str, arrow: pa.DataType, bits: int
) -> None:
    same(cql, pa.array([decimal.Decimal(n) for n in around(range(bits))], arrow))


@pytest.mark.parametrize(
    ("cql", "column"),
    [
        ("tinyint", pa.array([-128, -1, 0, None, 127], pa.int8())),
        ("smallint", pa.array([-(2**15), -1, 0, None, 2**15 - 1], pa.int16())),
        ("int", pa.array([-(2**31), -1, 0, None, 2**31 - 1], pa.int32())),
        ("bigint", pa.array([-(2**63), -1, 0, None, 2**63 - 1], pa.int64())),
        ("timestamp", pa.array([-(2**63), -1, 0, None, 2**63 - 1], pa.int64())),
        ("time", pa.array([0, 1, None, DAY - 1], pa.int64())),
        ("date", pa.array([-(2**31), -1, 0, None, 2**31 - 1], pa.int32()).cast(pa.date32())),
        ("float", pa.array([0.0, -0.0, float("nan"), float("-inf"), None, 1e-45], pa.float32())),
        ("double", pa.array([0.0, -0.0, float("nan"), float("-inf"), None, 5e-324])),
        ("boolean", pa.array([True, False, None] * 5)),
        ("text", pa.array(["", None, "\0", "é", "𝄞" * 30_000, "a"])),
        ("blob", pa.array([b"", None, b"\0", b"\xff" * 70_000])),
        ("uuid", pa.array([bytes(16), None, b"\xff" * 16, bytes(range(16))], pa.binary(16))),
        ("inet", pa.array(["1.2.3.4", None, "::", "::ffff:1.2.3.4", "::1.2.3.4", "1.2.3.4"])),
        ("inet", pa.nulls(3, pa.string())),
        ("frozen<pair>", pa.nulls(3)),
        ("int", pa.nulls(3, pa.int32())),
        ("set<int>", pa.nulls(3, INTS)),
    ],
)
def test_extreme_values_are_encoded_as_by_driver(cql: str, column: pa.Array) -> None:
    same(cql, column)


def test_bits_of_a_nan_are_kept() -> None:
    """A Python float cannot hold a signaling NaN of 32 bits."""
    bits = np.array([0x7F800001, 0xFFC12345], np.uint32)
    floats = pa.Array.from_buffers(pa.float32(), 2, [None, pa.py_buffer(bits)])
    data, _ = encode_from(pa.record_batch({"c": floats}), plan("float"), 0)
    assert [data.to_pybytes()[i : i + 4].hex() for i in (4, 24)] == ["7f800001", "ffc12345"]


# --- what Arrow may hide ---------------------------------------------------------------------


def hide(column: pa.Array) -> pa.Array:
    """Return a column with some of its values under nulls."""
    mask = pa.array(HIDDEN)
    if pa.types.is_struct(column.type):
        return pa.StructArray.from_arrays(column.flatten(), fields=[*column.type], mask=mask)
    if pa.types.is_list(column.type):
        return pa.ListArray.from_arrays(column.offsets, column.values, mask=mask)
    _, *buffers = column.buffers()
    valid = pc.invert(mask).buffers()[1]
    return pa.Array.from_buffers(column.type, len(column), [valid, *buffers])


@pytest.mark.parametrize(
    ("cql", "column"),
    [
        ("text", pa.array(["hidden", "a", "b", "c"])),
        ("bigint", pa.array([-1, 1, -1, 1], pa.int64())),
        ("varint", pa.array([10**30, 1, 2, 3], pa.decimal128(38, 0))),
        ("set<int>", pa.array([[7, 7], [1], [7], []], INTS)),
        ("frozen<list<text>>", pa.array([["x", "y"], ["a"], ["z"], []])),
        ("frozen<pair>", pa.array([{"x": 7, "y": "hidden"}, {"x": 1, "y": None}] * 2)
         .cast(pa.struct([("x", pa.int32()), ("y", pa.string())]))),
        ("vector<float, 1>", pa.array([[7.0], [1.0]] * 2, pa.list_(pa.float32()))),
    ],
)  # fmt: skip
def test_bytes_under_nulls_are_not_sent(cql: str, column: pa.Array) -> None:
    hidden = hide(column)
    assert hidden.null_count == 2
    assert hidden.to_pylist()[1] == column.to_pylist()[1]
    same(cql, hidden)


@pytest.mark.parametrize(
    ("cql", "arrow"),
    [
        ("text", pa.string()),
        ("inet", pa.string()),
        ("int", pa.int32()),
        ("boolean", pa.bool_()),
        ("uuid", pa.binary(16)),
        ("varint", pa.decimal128(38, 0)),
        ("duration", pa.int64()),
    ],
)
def test_arrays_without_rows_need_no_buffers(cql: str, arrow: pa.DataType) -> None:
    data = [pa.py_buffer(b"")] if arrow == pa.string() else []
    none = pa.Array.from_buffers(arrow, 0, [None, None, *data])
    assert encode_from(pa.record_batch({"c": none}), plan(cql), 0).data.size == 0
    same(f"frozen<list<{cql}>>", pa.ListArray.from_arrays(pa.array([0, 0, 0], pa.int32()), none))


def test_array_with_first_offset_above_zero_is_encoded() -> None:
    """The array is a slice, or is in a struct that is a slice."""
    lists = pa.array([["skipped"], ["a", "bb"], [], ["ccc"]])
    same("frozen<list<text>>", lists)
    both = pa.StructArray.from_arrays([lists, pa.array(["skipped", "x", None, "y"])], ["a", "b"])
    same("frozen<tuple<frozen<list<text>>, text>>", both)
    same("frozen<tuple<frozen<list<text>>, text>>", both[2:])
