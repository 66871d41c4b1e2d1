"""The modules that the check of a task loads."""

from __future__ import annotations

import io
import pickle
import sys
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tests.support.programs import ran
from wal_sink.options import parse
from wal_sink.targets.cassandra import CassandraOptions, CassandraTarget

TASK = """
import pickle, sys
import pyarrow as pa
already = set(sys.modules)
from wal_sink.model.plan import Column, Plan
target = pickle.loads(bytes.fromhex(sys.argv[1]))
columns = (
    Column(name="id", source="string", type="uuid", role="partition"),
    Column(name="at", source="timestamp[us, tz=UTC]", type="timestamp", role="clustering"),
    *(
        Column(name=f"c{i}", source=sys.argv[3 + 2 * i], type=sys.argv[4 + 2 * i], role="regular")
        for i in range(len(sys.argv[3:]) // 2)
    ),
)
types = {"place": [["street", "text"], ["seen", "set<time>"]]}
details = {"keyspace": "ks", "table": "t", "types": types}
plan = Plan(key="k", target="cassandra", table='"ks"."t"', columns=columns, details=details)
with pa.ipc.open_stream(bytes.fromhex(sys.argv[2])) as stream:
    batch = stream.read_next_batch()
assert target.check(batch, plan).num_rows == 1
print(sorted({"cassandra", "pandas", "numpy", "pyspark"} & set(sys.modules) - already))
"""


NESTED: list[tuple[pa.DataType, str, Any]] = [
    (pa.list_(pa.float32()), "vector<float, 2>", [0.5, 0.25]),
    (pa.struct([("seen", pa.list_(pa.string()))]), "place", {"seen": ["12:00:00"]}),
    (
        pa.map_(pa.string(), pa.list_(pa.decimal128(9, 0))),
        "map<inet, frozen<list<varint>>>",
        [("::1", [Decimal(1)])],
    ),
    (
        pa.struct([("a", pa.string()), ("b", pa.duration("us"))]),
        "frozen<tuple<timeuuid, duration>>",
        {"a": "123e4567-e89b-12d3-a456-426614174000", "b": timedelta(1)},
    ),
]
"""Further columns of the batch, with every kind of nested type."""


def target(**options: str) -> CassandraTarget:
    raw = {"keyspace": "shop", "table": "orders", "cassandra.contactPoints": "127.0.0.1"}
    return CassandraTarget(parse(raw | options, CassandraOptions))


def test_task_does_not_load_the_driver() -> None:
    pickled = pickle.dumps(target()).hex()
    at = pa.array([1000], pa.timestamp("us", "UTC"))
    arrays = [pa.array([value], arrow) for arrow, _, value in NESTED]
    columns = {f"c{i}": array for i, array in enumerate(arrays)}
    batch = pa.record_batch({"id": ["123e4567-e89b-12d3-a456-426614174000"], "at": at, **columns})
    described = [word for arrow, cql, _ in NESTED for word in (str(arrow), cql)]
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    done = ran(
        [sys.executable, "-W", "error", "-c", TASK, pickled, sink.getvalue().hex(), *described],
        timeout=60,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("[]\n", "", 0)
