"""The demo of a failover: PostgreSQL fails while its standby lags, and the standby is promoted.

The standby replicates asynchronously. The demo cuts its link to the primary, so the standby lacks the rows
that are written later. After the promotion, the ledger row of wal_sink is as old as the table. So the flush
continues with the first missing epoch, which is still in the log. `foreachBatch` has no log, and Spark does
not compute checkpointed epochs again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from wal_sink.demo.app import Application, start_driver
from wal_sink.demo.outcome import Report, comparison, report
from wal_sink.demo.postgresql import REPLICATES, Postgresql, Server, Standby
from wal_sink.demo.queries import (
    FAILOVER_CONTROL,
    FAILOVER_FLIGHTS,
    FAILOVER_QUERIES,
    STOP_FILE,
    read_flights,
    rows_per_file,
    write_files,
)
from wal_sink.demo.stores import Stores

_PARTS = 3
"""Number of parts of the source: before the link is cut, between cut and failover, after the failover."""
_FILES = 3
"""Number of files in a part. Each file is a micro-batch."""


class Source:
    """The source of both queries, which grows part by part.

    :param folder: the folder of the demo.
    :param rows: the number of flights that the source has in the end.
    """

    def __init__(self, folder: Path, rows: int) -> None:
        self.table: pa.Table = read_flights().slice(0, rows)
        number = _FILES * _PARTS
        staged = folder / "staged"
        write_files(staged, self.table, number)
        self._staged = sorted(staged.glob("*.parquet"))
        self._rows_per_file = rows_per_file(rows, number)
        self._folder = folder / FAILOVER_FLIGHTS.source
        self._folder.mkdir()
        self.files = 0

    @property
    def rows(self) -> int:
        """The number of rows in the source now."""
        return min(self.files * self._rows_per_file, int(self.table.num_rows))

    def grow(self) -> None:
        """Add the next part to the source."""
        for file in self._staged[self.files : self.files + _FILES]:
            file.rename(self._folder / file.name)
        self.files += _FILES


def run(folder: Path, *, flights: int, notify: Callable[[str], None]) -> Report:
    """Run the demo in an empty folder.

    :param flights: the number of flights to stream.
    :param notify: called with a line of text at each step.
    :raises WalSinkError: a server or the application failed.
    """
    began_s = time.monotonic()
    source = Source(folder, flights)
    zone = {"timezone": "UTC"}
    primary = Server({**REPLICATES, **zone})
    notify(f"Starting {primary.title} and its standby …")
    with primary, Standby(primary, zone) as standby:
        former = Postgresql(standby.uri_of_both, primary, primary.title)
        former.create()
        source.grow()
        with start_driver(
            Application(folder=str(folder), addresses=Stores([former]).addresses, failover=True),
            "driver",
        ) as driver:
            notify(f"Streaming {source.rows:,} flights, which reach the standby …")
            driver.reach(lambda: _have(former, source.rows))
            standby.await_caught_up()
            standby.cut_off()
            source.grow()
            notify(f"The link to the standby is cut. Streaming up to {source.rows:,} flights …")
            driver.reach(lambda: _have(former, source.rows))
            promoted = Postgresql(standby.uri_of_both, standby, primary.title)
            table = FAILOVER_FLIGHTS.table
            not_replicated = former.count(table) - promoted.count(table)
            primary.kill()
            standby.promote()
            source.grow()
            notify(
                "The primary is killed, and the standby is promoted. The standby lacks"
                f" {not_replicated:,} rows. Streaming up to {source.rows:,} flights …"
            )
            last = str(source.files - 1)
            commits = [folder / query.checkpoint / "commits" / last for query in FAILOVER_QUERIES]
            driver.reach(lambda: all(commit.exists() for commit in commits))
            (folder / STOP_FILE).touch()
            driver.finish()
        notify("Comparing the tables with the source …")
        return report(
            [comparison(query, source.table, promoted) for query in FAILOVER_QUERIES],
            Stores([promoted]),
            time.monotonic() - began_s,
            not_replicated=not_replicated,
        )


def _have(store: Postgresql, rows: int) -> bool:
    """Return True if both tables have at least `rows` rows."""
    tables = (FAILOVER_FLIGHTS.table, FAILOVER_CONTROL.table)
    return min(map(store.count, tables)) >= rows
