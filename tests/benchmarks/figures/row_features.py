"""What a row costs that is not a plain insert: the flush alone, beside one of inserts, in turn."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tests.benchmarks import backlog
from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders import ours
from tests.benchmarks.figure import Figure, at_most, figure
from tests.benchmarks.figures.flush import NAME, flushed
from tests.benchmarks.flush import flush
from tests.benchmarks.rows import Source
from tests.benchmarks.run import Run, Taken
from tests.benchmarks.table import RowsWrong, Table

Ids = np.ndarray[Any, Any]
"""Numbers of rows (int64)."""
Rows = Callable[[Ids], pa.Table]
"""Returns the plain rows of these numbers."""

_EVERY = 4
"""One row of this number is a delete, of the row before it."""
_LONG_S = 10_000
"""Longer than a run: the table has to be complete at its end."""


class Changed(Source, frozen=True, kw_only=True):
    """Rows of a shape, made into those of a feature."""

    change: Callable[[Rows, Ids], pa.Table]

    def table(self, ids: Ids) -> pa.Table:
        """Return the rows of these numbers."""
        return self.change(super().table, ids)


class Feature(NamedTuple):
    """A kind of rows."""

    name: str
    change: Callable[[Rows, Ids], pa.Table]
    options: Mapping[str, str]
    """Of the sink, beside those that name server and table."""
    rows_each: float = 1
    """How many rows leave one in the table."""


def _deletes(rows: Rows, ids: Ids) -> pa.Table:
    deletes = ids % _EVERY == _EVERY - 1
    changes = rows(np.where(deletes, ids - 1, ids))
    return changes.append_column("op", pa.array(np.where(deletes, "delete", "upsert")))


def _ttls(rows: Rows, ids: Ids) -> pa.Table:
    return rows(ids).append_column("ttl", pa.array(_LONG_S + ids % 1000))


def _plain(rows: Rows, ids: Ids) -> pa.Table:
    return rows(ids)


FEATURES = (
    Feature("deletes", _deletes, {"operationColumn": "op"}, rows_each=2),
    Feature("TTLs", _ttls, {"cassandra.ttlColumn": "ttl"}),
    Feature("event times", _plain, {"cassandra.timestampColumn": "at"}),
)


def features(bench: Bench) -> list[Figure]:
    """Client CPU of a written row over that of an insert."""
    figures = []
    for feature in FEATURES:
        plain = Source(shape="grouped", rows=bench.sizes.grouped)
        bench.say(f"{feature.name}; {plain.shape}, {plain.rows:,} rows")
        pairs = [
            (
                flushed(bench, plain, bench.sizes.micro_batches, number),
                _flushed(bench, plain, feature, number),
            )
            for number in range(bench.sizes.rounds)
        ]
        ratios = [other.client_us / one.client_us for one, other in pairs if one and other]
        name = f"{feature.name} over inserts: client CPU a written row"
        figures.append(figure(name, ratios, "x", at_most(1.15)))
    return figures


def _flushed(bench: Bench, plain: Source, feature: Feature, number: int) -> Run | None:
    """Make a backlog and flush it; None when the table has another number of rows than it should."""
    folder = bench.new_folder()

    def what(table: Table) -> Taken:
        options = {**ours.options(table), **feature.options}
        rows = Changed(shape=plain.shape, rows=plain.rows, change=feature.change)
        return flush(backlog.make(folder, options, rows, bench.sizes.micro_batches))

    def check(table: Table) -> None:
        select = f"SELECT id FROM {table.where}"
        rows = table.server.session().execute(select, timeout=None)  # by pages
        if (result := sum(1 for _ in rows)) != plain.rows // feature.rows_each:
            raise RowsWrong(f"{table.where} has {result:,} rows of {plain.rows:,}")

    name = f"{NAME}, {feature.name}"
    run = bench.write(name, plain, number, what, check=check)
    shutil.rmtree(folder, ignore_errors=True)
    return run
