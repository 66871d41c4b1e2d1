"""What it costs to encode rows, without sending them."""

from __future__ import annotations

import importlib
import importlib.util
import time
from typing import Any

import numpy as np

from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders import ours
from tests.benchmarks.figure import Figure, at_most, figure
from tests.benchmarks.rows import Source
from tests.benchmarks.table import Table
from wal_sink.configuration import configure
from wal_sink.targets.base import Plan, plan_key

_MODULE = "wal_sink.targets.cassandra.encode"
_SLICE = 10_000
_TIMES = 30
_HEAD = b"\x01\x00\x10" + bytes(16) + b"\x00\x06"
"""What stands before each row's values in a batch: kind, a prepared statement's id, how many values."""


def encoding(bench: Bench) -> list[Figure]:
    """CPU of this thread over slices of the size that Spark hands over."""
    name, limit = "encoding: client CPU, grouped", at_most(1.2)
    if importlib.util.find_spec(_MODULE) is None:
        return [figure(name, [], "us/row", limit, f"there is no {_MODULE} yet")]
    encode: Any = importlib.import_module(_MODULE).encode
    source = Source(shape="grouped", rows=bench.sizes.grouped)
    batch = source.table(np.arange(min(_SLICE, source.rows))).combine_chunks().to_batches()[0]
    table = Table(bench.server, source.columns)
    target = configure({**ours.options(table), "checkpointLocation": str(bench.folder)}).target
    plan: Plan = target.plan(batch.schema, plan_key(batch.schema, target.name, target.shape))
    batch = target.check(batch, plan)
    first_us = time.time_ns() // 1_000
    encode(batch, plan, first_us, _HEAD)
    values = []
    for _ in range(max(3, bench.sizes.rounds)):
        began = time.thread_time()
        for _ in range(_TIMES):
            encode(batch, plan, first_us, _HEAD)
        values.append((time.thread_time() - began) / _TIMES / batch.num_rows * 1e6)
    table.drop()
    return [figure(name, values, "us/row", limit)]
