"""The demo of a failover: PostgreSQL fails while its standby lags, and the standby is promoted.

The standby replicates asynchronously. The demo cuts its link to the primary, so the standby lacks the rows
that are written later. After the promotion, the ledger row of wal_sink is as old as the table. So the flush
continues with the first missing epoch, which is still in the log. `foreachBatch` has no log, and Spark does
not compute checkpointed epochs again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from wal_sink.demo.app import STOP_FILE, Application, start_driver
from wal_sink.demo.flights import read_flights, rows_per_file, write_files
from wal_sink.demo.outcome import Report, comparison, report
from wal_sink.demo.postgresql import REPLICATES, Postgresql, Server, Standby
from wal_sink.demo.queries import FAILOVER_CONTROL, FAILOVER_FLIGHTS, FAILOVER_QUERIES
from wal_sink.demo.stores import Stores

_PARTS = 3
"""Number of parts of the source: before the link is cut, between cut and failover, after the failover."""
_FILES = 3
"""Number of files in a part. Each file is a micro-batch."""


def grow_source(folder: Path, flights: pa.Table) -> Iterator[int]:
    """Add a part to the source of both queries at each step; yield how many rows the source has then.

    :param folder: the folder of the demo.
    :param flights: the rows of all parts.
    """
    staged, source = folder / "staged", folder / FAILOVER_FLIGHTS.source
    write_files(staged, flights, _FILES * _PARTS)
    source.mkdir()
    rows_in_file = rows_per_file(flights.num_rows, _FILES * _PARTS)
    for number, file in enumerate(sorted(staged.glob("*.parquet")), 1):
        file.rename(source / file.name)
        if number % _FILES == 0:
            yield min(number * rows_in_file, flights.num_rows)


def run(folder: Path, *, flights: int, notify: Callable[[str], None]) -> Report:
    """Run the demo in an empty folder.

    :param flights: the number of flights to stream.
    :param notify: called with a line of text at each step.
    :raises WalSinkError: a server or the application failed.
    """
    began_s = time.monotonic()
    source = read_flights().slice(0, flights)
    parts = grow_source(folder, source)
    zone = {"timezone": "UTC"}
    primary = Server({**REPLICATES, **zone})
    notify(f"Starting {primary.title} and its standby …")
    with primary, Standby(primary, zone) as standby:
        former = Postgresql(standby.uri_of_both, primary)
        former.create()
        rows = next(parts)
        with start_driver(
            Application(folder=str(folder), addresses=Stores([former]).addresses, failover=True),
            "driver",
        ) as driver:
            notify(f"Streaming {rows:,} flights, which reach the standby …")
            driver.reach(lambda: _have(former, rows))
            standby.await_caught_up()
            standby.cut_off()
            rows = next(parts)
            notify(f"The link to the standby is cut. Streaming up to {rows:,} flights …")
            driver.reach(lambda: _have(former, rows))
            promoted = Postgresql(standby.uri_of_both, standby)
            table = FAILOVER_FLIGHTS.table
            not_replicated = former.count(table) - promoted.count(table)
            primary.kill()
            standby.promote()
            rows = next(parts)
            notify(
                "The primary is killed, and the standby is promoted. The standby lacks"
                f" {not_replicated:,} rows. Streaming up to {rows:,} flights …"
            )
            last = str(_FILES * _PARTS - 1)
            commits = [folder / query.checkpoint / "commits" / last for query in FAILOVER_QUERIES]
            driver.reach(lambda: all(commit.exists() for commit in commits))
            (folder / STOP_FILE).touch()
            driver.finish()
        notify("Comparing the tables with the source …")
        return report(
            [comparison(query, source, promoted) for query in FAILOVER_QUERIES],
            Stores([promoted]),
            time.monotonic() - began_s,
            not_replicated=not_replicated,
        )


def _have(store: Postgresql, rows: int) -> bool:
    """Return True if both tables have at least `rows` rows."""
    tables = (FAILOVER_FLIGHTS.table, FAILOVER_CONTROL.table)
    return min(map(store.count, tables)) >= rows
