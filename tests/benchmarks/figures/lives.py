"""What rows cost that live for a time, or bring the times of their events: the flush, beside inserts."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tests.benchmarks import backlog
from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders import ours
from tests.benchmarks.figure import Figure
from tests.benchmarks.figures.flush import flushed, over_inserts
from tests.benchmarks.flush import flush
from tests.benchmarks.rows import Source
from tests.benchmarks.run import Run, Taken
from tests.benchmarks.table import Table

_LONG_S = 10_000
"""Longer than a run: the table has to be complete at its end."""


class Mortal(Source, frozen=True, kw_only=True):
    """Rows of a shape, with a column `life` of seconds."""

    def table(self, ids: np.ndarray[Any, Any]) -> pa.Table:
        """Return the rows of these ids (int64)."""
        return super().table(ids).append_column("life", pa.array(_LONG_S + ids % 1000))


class _Case(NamedTuple):
    name: str
    source: type[Source]
    options: Mapping[str, str]


_CASES = (
    _Case("lives", Mortal, {"cassandra.ttlColumn": "life"}),
    _Case("event times", Source, {"cassandra.timestampColumn": "at"}),
)


def lives(bench: Bench) -> list[Figure]:
    """Whether rows cost more that have lives, or event times."""
    rows = bench.sizes.grouped
    plain = Source(shape="grouped", rows=rows)
    bench.say(f"lives and event times, grouped, {rows:,} rows")
    found: list[dict[str, Run | None]] = []
    for number in range(bench.sizes.rounds):
        runs = {"": flushed(bench, plain, bench.sizes.micro_batches, number)}
        runs |= {case.name: _written(bench, case, plain, number) for case in _CASES}
        found.append(runs)
    figures = []
    for case in _CASES:
        pairs = [(runs[""], runs[case.name]) for runs in found]
        figures += over_inserts(f"{case.name} over inserts, grouped", pairs)
    return figures


def _written(bench: Bench, case: _Case, plain: Source, number: int) -> Run | None:
    """Make a backlog and flush it; the table is that of the plain rows."""
    folder, source = bench.new_folder(), case.source(shape=plain.shape, rows=plain.rows)

    def what(table: Table) -> Taken:
        options = {**ours.options(table), **case.options}
        return flush(backlog.make(folder, options, source, bench.sizes.micro_batches))

    run = bench.write(f"wal_sink, flush alone, {case.name}", plain, number, what)
    shutil.rmtree(folder, ignore_errors=True)
    return run
