"""What it costs to add rows to totals: the flush alone, beside one of inserts, in turn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders import ours
from tests.benchmarks.figure import Figure, figure
from tests.benchmarks.figures.flush import checked_flush, flushed
from tests.benchmarks.rows import Source
from tests.benchmarks.run import Run
from tests.benchmarks.table import RowsWrong, Table

NAME = "wal_sink, flush alone, totals"


class Clicks(Source, frozen=True, kw_only=True):
    """Rows of a shape, of which so many in a row have one key."""

    each: int

    def table(self, ids: np.ndarray[Any, Any]) -> pa.Table:
        """Return the rows of these numbers (int64)."""
        return super().table(ids // self.each)


def totals(bench: Bench) -> list[Figure]:
    """What a row costs that is added, where each has a key of its own, and where fifty have one."""
    figures, rows = [], bench.sizes.shapes
    for each in (1, 50):
        bench.say(f"totals, narrow, {rows:,} rows, {each} of each key")
        plain = Source(shape="narrow", rows=rows)
        clicks = Clicks(shape="narrow", rows=rows, each=each)
        pairs = [
            (
                flushed(bench, plain, bench.sizes.micro_batches, number),
                _added(bench, clicks, number),
            )
            for number in range(bench.sizes.rounds)
        ]
        client = [
            added.client_us / inserts.client_us for inserts, added in pairs if inserts and added
        ]
        figures.append(
            figure(f"totals over inserts, {each} of each key: client CPU a row", client, "x")
        )
    return figures


def _added(bench: Bench, source: Clicks, number: int) -> Run | None:
    """Make a backlog and flush it; None when the totals are not those of the rows."""
    columns = {**source.columns, "wal_sink_added": "text"}
    table = Table(bench.server, columns)
    options = {**ours.options(table), "cassandra.addColumns": "amount"}
    return checked_flush(
        bench, NAME, source, number, [table], options, lambda: _check(table, source)
    )


def _check(table: Table, source: Clicks) -> None:
    """Compare the sum of the totals with that of the rows, and the number of keys.

    :raises RowsWrong: saying what differs.
    """
    given = source.table(np.arange(source.rows))
    session = table.server.session()
    rows = session.execute(f"SELECT amount FROM {table.where}", timeout=None)  # pages of 5,000
    found = [row.amount for row in rows]
    wanted = len(pc.unique(given["id"])), pc.sum(given["amount"]).as_py()
    if (len(found), sum(found)) != wanted:
        raise RowsWrong(f"{table.where} has {len(found):,} rows of {sum(found)}, not {wanted}")
