"""What a row costs that is no plain insert: the flush alone, beside one of inserts, in turn."""

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
from tests.benchmarks.rows import Name, Source
from tests.benchmarks.run import Run, Taken
from tests.benchmarks.table import RowsWrong, Table

Ids = np.ndarray[Any, Any]
"""Numbers of rows (int64)."""
Rows = Callable[[Ids], pa.Table]
"""Returns the plain rows of these numbers."""

_EVERY = 4
"""One row of so many is a delete, of the row before it."""
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
    """Of the sink, beside those that name server and table; `{}` is the table's name."""
    rows_each: float = 1
    """So many rows leave one in the table."""
    first: str = ""
    """A statement before the run; `{}` is the table."""
    shape: Name = "grouped"
    second: bool = False
    """Whether each row goes to a second table, too."""


def _deletes(rows: Rows, ids: Ids) -> pa.Table:
    deletes = ids % _EVERY == _EVERY - 1
    changes = rows(np.where(deletes, ids - 1, ids))
    return changes.append_column("op", pa.array(np.where(deletes, "delete", "upsert")))


def _lives(rows: Rows, ids: Ids) -> pa.Table:
    return rows(ids).append_column("life", pa.array(_LONG_S + ids % 1000))


def _plain(rows: Rows, ids: Ids) -> pa.Table:
    return rows(ids)


def _totals(each: int) -> Feature:
    """Return rows that are added, of which so many in a row have one key."""
    return Feature(
        f"totals, {each} of each key",
        lambda rows, ids: rows(ids // each),
        {"cassandra.addColumns": "amount"},
        rows_each=each,
        first="ALTER TABLE {} ADD wal_sink_added text",
        shape="narrow",
    )


FEATURES = (
    Feature("deletes", _deletes, {"operationColumn": "op"}, rows_each=2),
    Feature("lives", _lives, {"cassandra.ttlColumn": "life"}),
    Feature("event times", _plain, {"cassandra.timestampColumn": "at"}),
    Feature(
        "two tables",
        _plain,
        {"table": "", "tables": "{},{}_too"},
        first="CREATE TABLE {}_too (device text, id bigint, at timestamp, amount bigint, note text,"
        " PRIMARY KEY (device, id))",
        second=True,
    ),
    _totals(1),
    _totals(50),
)


def features(bench: Bench) -> list[Figure]:
    """Client CPU of a written row over that of an insert."""
    figures = []
    for feature in FEATURES:
        rows = bench.sizes.grouped if feature.shape == "grouped" else bench.sizes.shapes
        plain = Source(shape=feature.shape, rows=rows)
        bench.say(f"{feature.name}; {plain.shape}, {plain.rows:,} rows")
        pairs = [
            (
                flushed(bench, plain, bench.sizes.micro_batches, number),
                _flushed(bench, plain, feature, number),
            )
            for number in range(bench.sizes.rounds)
        ]
        ratios = [other.client_us / one.client_us for one, other in pairs if one and other]
        written = 2 if feature.second else 1
        name = f"{feature.name} over inserts: client CPU a written row"
        target = None if feature.name.startswith("totals") else at_most(1.15)
        figures.append(figure(name, [each / written for each in ratios], "x", target))
    return figures


def _flushed(bench: Bench, plain: Source, feature: Feature, number: int) -> Run | None:
    """Make a backlog and flush it; None when the table has another number of rows than it should."""
    folder = bench.new_folder()
    wheres = ("{}", "{}_too") if feature.second else ("{}",)

    def prepare(table: Table) -> None:
        if feature.first:
            table.server.execute(feature.first.format(table.where))

    def what(table: Table) -> Taken:
        more = {key: value.format(table.name, table.name) for key, value in feature.options.items()}
        options = {**ours.options(table), **more}
        rows = Changed(shape=plain.shape, rows=plain.rows, change=feature.change)
        return flush(backlog.make(folder, options, rows, bench.sizes.micro_batches))

    def check(table: Table) -> None:
        for where in (each.format(table.where) for each in wheres):
            select = f"SELECT id FROM {where}"
            rows = table.server.session().execute(select, timeout=None)  # by pages
            if (found := sum(1 for _ in rows)) != plain.rows // feature.rows_each:
                raise RowsWrong(f"{where} has {found:,} rows of {plain.rows:,}")
        for where in wheres[1:]:
            table.server.execute(f"DROP TABLE {where.format(table.where)}")

    name = f"{NAME}, {feature.name}"
    run = bench.write(name, plain, number, what, prepare=prepare, check=check)
    shutil.rmtree(folder, ignore_errors=True)
    return run
