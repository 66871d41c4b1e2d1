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
from wal_sink.model.plan import plan_key
from wal_sink.targets.cassandra.row_plan import CassandraPlan

_MODULE = "wal_sink.targets.cassandra.encode"
_SLICE = 10_000
_ROWS = 500_000
"""More than fits into a processor's cache: one slice again and again would look cheaper than it is."""
_HEAD = b"\x01\x00\x10" + bytes(16) + b"\x00\x06"
"""What stands before each row's values in a batch: kind, a prepared statement's id, how many values."""


def encoding(bench: Bench) -> list[Figure]:
    """CPU of this thread over slices of the size that Spark hands over."""
    name, limit = "encoding: client CPU, grouped", at_most(1.2)
    if importlib.util.find_spec(_MODULE) is None:
        return [figure(name, [], "us/row", limit, f"there is no {_MODULE} yet")]
    encode: Any = importlib.import_module(_MODULE).encode
    source = Source(shape="grouped", rows=bench.sizes.grouped)
    slices = source.table(np.arange(min(_ROWS, source.rows))).combine_chunks().to_batches(_SLICE)
    table = Table(bench.server, source.columns)
    target = configure({**ours.options(table), "checkpointLocation": str(bench.folder)}).target
    schema = slices[0].schema
    plan = CassandraPlan.of(target.plan(schema, plan_key(schema, target.name, target.shape)))
    checked = [target.check(batch, plan) for batch in slices]
    first_us = time.time_ns() // 1_000
    encode(checked[0], plan, first_us, _HEAD)
    values = []
    for _ in range(max(3, bench.sizes.rounds)):
        began = time.thread_time()
        for batch in checked:
            encode(batch, plan, first_us, _HEAD)
        rows = sum(batch.num_rows for batch in checked)
        values.append((time.thread_time() - began) / rows * 1e6)
    table.drop()
    return [figure(name, values, "us/row", limit)]
