"""What several tables cost: each row in two, and each in the one that it names; the flush alone, in turn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders import ours
from tests.benchmarks.figure import Figure, at_most, figure
from tests.benchmarks.figures.flush import checked_flush, flushed
from tests.benchmarks.rows import Source
from tests.benchmarks.run import Run
from tests.benchmarks.table import RowsWrong, Table

NAME = "wal_sink, flush alone, two tables"


class Named(Source, frozen=True, kw_only=True):
    """Rows of a shape, with a column `goes` that names one of two tables in turn."""

    tables: tuple[str, str]

    def table(self, ids: np.ndarray[Any, Any]) -> pa.Table:
        """Return the rows of these numbers (int64)."""
        goes = np.where(ids % 2 == 0, *self.tables)
        return super().table(ids).append_column("goes", pa.array(goes))


def two_tables(bench: Bench) -> list[Figure]:
    """Whether a row that is written costs more where there are two tables."""
    figures = []
    for shape, rows in (("grouped", bench.sizes.grouped), ("interleaved", bench.sizes.shapes)):
        bench.say(f"tables, {shape}, {rows:,} rows")
        plain = Source(shape=shape, rows=rows)  # type: ignore[arg-type]
        every, named = [], []
        for number in range(bench.sizes.rounds):
            one = flushed(bench, plain, bench.sizes.micro_batches, number)
            if one is None:
                continue
            if both := _flushed(bench, plain, number, names=False):
                every.append(both.client_us / 2 / one.client_us)
            if each := _flushed(bench, plain, number, names=True):
                named.append(each.client_us / one.client_us)
        figures += [
            figure(
                f"each row in two tables over one, {shape}: client CPU a written row",
                every,
                "x",
                at_most(1.15),
            ),
            figure(
                f"each row in one of two tables over one, {shape}: client CPU a written row",
                named,
                "x",
                at_most(1.15),
            ),
        ]
    return figures


def _flushed(bench: Bench, source: Source, number: int, *, names: bool) -> Run | None:
    """Make a backlog for two tables and flush it; None when one of them is not what it should be."""
    tables = [Table(bench.server, source.columns) for _ in range(2)]
    both = (tables[0].name, tables[1].name)
    options = {**ours.options(tables[0]), "table": "", "tables": ",".join(both)}
    rows: Source = source
    if names:
        options["tableColumn"] = "goes"
        rows = Named(shape=source.shape, rows=source.rows, tables=both)
    ids = np.arange(source.rows)
    wanted = [ids[ids % 2 == place] if names else ids for place in range(2)]
    contender = f"{NAME}, {'by name' if names else 'each row in both'}"
    return checked_flush(
        bench, contender, rows, number, tables, options, lambda: _check(tables, wanted)
    )


def _check(tables: list[Table], wanted: list[np.ndarray[Any, Any]]) -> None:
    """Compare the ids in each table.

    :raises RowsWrong: saying what differs.
    """
    for table, ids in zip(tables, wanted, strict=True):
        rows = table.server.session().execute(f"SELECT id FROM {table.where}", timeout=None)
        found = np.sort(np.fromiter((row.id for row in rows), np.int64))
        if not np.array_equal(found, ids):
            raise RowsWrong(f"{table.where} has {len(found):,} rows, not {len(ids):,}, or others")
