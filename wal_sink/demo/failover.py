"""Runs the demo of a failover: PostgreSQL fails while its standby lags, and the standby takes over.

The standby is asynchronous, as most are. Its link to the primary is cut, so it lacks what is written then.
After the promotion the sink's ledger row is as old as the table: the flush goes on from there, and the log
has the epochs. `foreachBatch` has no log; Spark does not compute epochs again that are checkpointed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from wal_sink.demo import flights
from wal_sink.demo.app import Application
from wal_sink.demo.postgresql import Postgresql
from wal_sink.demo.queries import KEPT, LOST, OF_FAILOVER, OVER
from wal_sink.demo.report import Report, comparison, report
from wal_sink.demo.run import driver_of
from wal_sink.demo.servers.postgresql import REPLICATES, Server, Standby
from wal_sink.demo.stores import Stores

_PARTS = 3
"""Of the source: what the standby gets, what it lacks, and what comes after the failover."""
_FILES = 3
"""Of each part; each is one micro-batch."""


class Source:
    """The files of both queries, which come in parts.

    :param folder: of the demo.
    :param rows: how many flights.
    """

    def __init__(self, folder: Path, rows: int) -> None:
        self.table: pa.Table = flights.read().slice(0, rows)
        number = _FILES * _PARTS
        staged = Path(flights.write_files(folder / "staged", self.table, number))
        self._staged = sorted(staged.glob("*.parquet"))
        self._rows_per_file = flights.rows_per_file(rows, number)
        self._folder = folder / KEPT.source
        self._folder.mkdir()
        self.files = 0
        """How many the queries have been given."""

    @property
    def rows(self) -> int:
        """Rows in the files that the queries have been given."""
        return min(self.files * self._rows_per_file, int(self.table.num_rows))

    def give(self) -> None:
        """Give the queries the files of the next part."""
        for file in self._staged[self.files : self.files + _FILES]:
            file.rename(self._folder / file.name)
        self.files += _FILES


def run(folder: Path, *, flights: int, say: Callable[[str], None]) -> Report:
    """Run the demo in an empty folder.

    :param flights: how many to stream.
    :param say: called with what happens, a line each.
    :raises WalSinkError: the demo could not be run to its end; its outcome is in the report.
    """
    began_s = time.monotonic()
    source = Source(folder, flights)
    zone = {"timezone": "UTC"}
    primary = Server({**REPLICATES, **zone})
    say(f"Starting {primary.title} and its standby …")
    with primary, Standby(primary, zone) as standby:
        former = Postgresql(standby.uri_of_both, primary, primary.title)
        former.create()
        source.give()
        with driver_of(
            Application(folder=str(folder), addresses=Stores([former]).addresses, failover=True),
            "driver",
        ) as driver:
            say(f"Streaming {source.rows:,} flights, which the standby gets …")
            driver.reach(lambda: _have(former, source.rows))
            standby.await_caught_up()
            standby.cut_off()
            source.give()
            say(f"The link to the standby is cut. Streaming up to {source.rows:,} flights …")
            driver.reach(lambda: _have(former, source.rows))
            after = Postgresql(standby.uri_of_both, standby, primary.title)
            not_replicated = former.count(KEPT.table) - after.count(KEPT.table)
            primary.kill()
            standby.promote()
            source.give()
            say(
                f"The primary is killed, and the standby is promoted. It lacks {not_replicated:,} rows."
                f" Streaming up to {source.rows:,} flights …"
            )
            last = str(source.files - 1)
            commits = [folder / query.checkpoint / "commits" / last for query in OF_FAILOVER]
            driver.reach(lambda: all(commit.exists() for commit in commits))
            (folder / OVER).touch()
            driver.finish()
        say("Comparing the tables with the source …")
        return report(
            [comparison(query, source.table, after) for query in OF_FAILOVER],
            Stores([after]),
            time.monotonic() - began_s,
            not_replicated=not_replicated,
        )


def _have(store: Postgresql, rows: int) -> bool:
    """Return True if both tables have that number of rows."""
    return min(store.count(KEPT.table), store.count(LOST.table)) >= rows
