"""The encoding of whole rows, and their routing keys."""

from __future__ import annotations

import datetime as dt
import itertools
import struct
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pytest

from tests.support.cql_driver import driver_rows, encode_from, plan_of
from wal_sink.model.plan import Role
from wal_sink.targets.cassandra.encode import (
    Varying,
    reordered,
    routing_keys,
)
from wal_sink.targets.cassandra.row_plan import CassandraPlan
from wal_sink.targets.cassandra.rows import check

US = 1_700_000_000_000_000
HEAD = b"\x01\x00\x02id\x00\x06"


def batch_of(
    columns: Mapping[str, tuple[Role, str, pa.Array]], nulls: str = "unset"
) -> tuple[pa.RecordBatch, CassandraPlan]:
    """Check columns, given by role, CQL type and values. Return the rows and their plan."""
    fields = [(name, role, cql, item.type) for name, (role, cql, item) in columns.items()]
    plan = plan_of(*fields, nulls=nulls)
    batch = pa.record_batch({name: values for name, (_, _, values) in columns.items()})
    return check(batch, plan), plan


def readings(nulls: str = "unset") -> tuple[pa.RecordBatch, CassandraPlan]:
    """Return rows with columns of fixed and varying width, and with nulls."""
    return batch_of(
        {
            "device": ("partition", "text", pa.array(["a", "bb", "a", "ccc", "bb"])),
            "day": ("partition", "date", pa.array([dt.date(2026, 1, 1)] * 5)),
            "n": ("clustering", "int", pa.array(range(5), pa.int32())),
            "value": ("regular", "double", pa.array([1.5, None, 2.5, None, -0.0])),
            "note": ("regular", "text", pa.array([None, "x", "", None, "long" * 99])),
            "void": ("regular", "bigint", pa.nulls(5, pa.int64())),
        },
        nulls,
    )


def rows_of(encoded: Varying) -> list[bytes]:
    """Return the bytes of each row."""
    data = encoded.data.to_pybytes()
    bounds = encoded.offsets.tolist()
    return [data[i:j] for i, j in itertools.pairwise(bounds)]


@pytest.mark.parametrize("nulls", ["unset", "write"])
@pytest.mark.parametrize("protocol", [4, 5])
def test_encoded_row_has_head_values_and_timestamp(nulls: str, protocol: int) -> None:
    """The values and the timestamp are the driver's bytes for a bound statement."""
    batch, plan = readings(nulls)
    expected = [HEAD + row.wire for row in driver_rows(batch, plan, US, protocol=protocol)]
    encoded = encode_from(batch, plan, US, HEAD)
    assert rows_of(encoded) == expected


def test_encoding_no_rows_gives_one_offset() -> None:
    batch, plan = readings()
    encoded = encode_from(batch[:0], plan, US, HEAD)
    assert (encoded.data.size, encoded.offsets.tolist()) == (0, [0])
    assert rows_of(reordered(encoded, np.array([], np.int64))) == []
    assert routing_keys(batch[:0], plan, [0, 1]).to_pylist() == []


def test_rows_in_another_order_keep_their_timestamps() -> None:
    batch, plan = readings()
    encoded = encode_from(batch, plan, US, HEAD)
    rows = rows_of(encoded)
    for order in ([4, 2, 0, 1, 3], [3], [0, 2]):
        again = reordered(encoded, np.array(order))
        assert rows_of(again) == [rows[i] for i in order]
        timestamps_us = [struct.unpack(">q", row[-8:])[0] for row in rows_of(again)]
        assert timestamps_us == [US + i for i in order]


# --- routing keys ----------------------------------------------------------------------------


KEYS: dict[str, tuple[Role, str, pa.Array]] = {
    "a": ("partition", "text", pa.array(["", "é", "x" * 300])),
    "b": ("partition", "int", pa.array([0, -1, 2**31 - 1], pa.int32())),
    "c": ("partition", "frozen<set<int>>", pa.array([[], [1], [2, 3]], pa.list_(pa.int32()))),
    "d": ("partition", "varint", pa.array([0, 2**40, -1])),
    "v": ("regular", "double", pa.array([1.0, None, 2.0])),
}


@pytest.mark.parametrize("indexes", [(1,), (2,), (3,), (0, 1), (1, 0), (3, 0, 2, 1)])
def test_routing_keys_equal_those_of_the_driver(indexes: tuple[int, ...]) -> None:
    batch, plan = batch_of(KEYS)
    expected = [row.routing_key for row in driver_rows(batch, plan, key=indexes)]
    keys = routing_keys(batch, plan, indexes)
    assert keys.type == pa.binary()
    assert keys.to_pylist() == expected
    assert routing_keys(batch[1:], plan, indexes).to_pylist() == expected[1:]


def test_invalid_routing_key_is_refused() -> None:
    long = pa.record_batch({"a": ["x" * 65_536], "b": pa.array([1], pa.int32())})
    null = pa.record_batch({"a": ["x"], "b": pa.array([None], pa.int32())})
    _, plan = batch_of({name: KEYS[name] for name in "ab"})
    with pytest.raises(ValueError, match="more than 65535 bytes"):
        routing_keys(long, plan, [0, 1])
    with pytest.raises(ValueError, match="Column b of the partition key is null"):
        routing_keys(null, plan, [0, 1])
