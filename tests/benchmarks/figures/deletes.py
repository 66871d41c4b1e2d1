"""What deletes cost that lie between upserts: the flush alone, beside one of inserts, in turn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders import ours
from tests.benchmarks.figure import Figure
from tests.benchmarks.figures.flush import checked_flush, flushed, over_inserts
from tests.benchmarks.rows import Source
from tests.benchmarks.run import Run
from tests.benchmarks.table import RowsWrong, Table

NAME = "wal_sink, flush alone, deletes"
_EVERY = 4
"""One row of so many is a delete, of the row before it."""


class Changes(Source, frozen=True, kw_only=True):
    """Rows of a shape, with a column `op`; the last of every four deletes the third one."""

    def table(self, ids: np.ndarray[Any, Any]) -> pa.Table:
        """Return the changes of these numbers (int64)."""
        deletes = ids % _EVERY == _EVERY - 1
        rows = super().table(np.where(deletes, ids - 1, ids))
        return rows.append_column("op", pa.array(np.where(deletes, "delete", "upsert")))


def deletes(bench: Bench) -> list[Figure]:
    """Whether rows cost more where some of them are deletes."""
    figures = []
    for shape, rows in (("grouped", bench.sizes.grouped), ("interleaved", bench.sizes.shapes)):
        bench.say(f"deletes, {shape}, {rows:,} rows")
        plain = Source(shape=shape, rows=rows)  # type: ignore[arg-type]
        changes = Changes(shape=shape, rows=rows)  # type: ignore[arg-type]
        pairs = [
            (
                flushed(bench, plain, bench.sizes.micro_batches, number),
                _changed(bench, changes, number),
            )
            for number in range(bench.sizes.rounds)
        ]
        figures += over_inserts(f"deletes among upserts over inserts, {shape}", pairs)
    return figures


def _changed(bench: Bench, source: Changes, number: int) -> Run | None:
    """Make a backlog of changes and flush it; None when the table is not what they leave."""
    table = Table(bench.server, source.columns)
    options = {**ours.options(table), "operationColumn": "op"}
    return checked_flush(
        bench, NAME, source, number, [table], options, lambda: _check(table, source)
    )


def _check(table: Table, source: Changes) -> None:
    """Compare count and sum of the ids with what the changes leave.

    :raises RowsWrong: saying what differs.
    """
    ids = np.arange(source.rows)
    deleted = ids[ids % _EVERY == _EVERY - 1] - 1
    left = np.setdiff1d(ids[ids % _EVERY != _EVERY - 1], deleted)
    session = table.server.session()
    rows = session.execute(f"SELECT id FROM {table.where}", timeout=None)  # pages of 5,000
    found = np.sort(np.fromiter((row.id for row in rows), np.int64))
    if not np.array_equal(found, left):
        raise RowsWrong(f"{table.where} has {len(found):,} rows, not {len(left):,}, or others")
