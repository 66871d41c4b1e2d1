"""The part `memory`: the driver's memory during a large epoch."""

from __future__ import annotations

import msgspec

from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders import ours
from tests.benchmarks.figure import Figure, at_most, figure
from tests.benchmarks.memory_app import Config, Memory
from tests.benchmarks.process import result_of
from tests.benchmarks.rows import Source
from tests.benchmarks.table import Table


def memory(bench: Bench) -> list[Figure]:
    """Stream one large epoch in its own application."""
    source = Source(shape="grouped", rows=bench.sizes.memory)
    warm_up = Source(shape="grouped", rows=source.rows // 20)
    bench.say(f"memory, {source.rows:,} rows in one epoch")
    table, warm_up_table = Table(bench.server), Table(bench.server)
    config = Config(
        folder=str(bench.new_folder()),
        source=source,
        options=ours.options(table),
        warm_up=warm_up,
        warm_up_options=ours.options(warm_up_table),
    )
    text = result_of("tests.benchmarks.memory_app", msgspec.json.encode(config).decode())
    used = msgspec.json.decode(text, type=Memory)
    bench.complete("wal_sink, one epoch", lambda: table.check(source))
    for item in (table, warm_up_table):
        item.drop()
    return [
        figure(
            f"memory: driver's Python, {source.rows:,} rows in one epoch",
            [used.peak - used.start],
            "MB over the start",
            at_most(300),
            f"{used.start:.0f} MB at the start",
        )
    ]
