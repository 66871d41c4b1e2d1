"""Runs the demo of a failover: PostgreSQL fails while its standby lags, and the standby takes over.

The standby is asynchronous, as most are. Its link to the primary is cut, so it lacks what is written then.
After the promotion the sink's ledger row is as old as the table: the flush goes on from there, and the log
has the epochs. `foreachBatch` has no log; Spark does not compute epochs again that are checkpointed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import msgspec

from wal_sink.demo.crash import Driver
from wal_sink.demo.failover_queries import KEPT, LOST, OVER, QUERIES, Source
from wal_sink.demo.oracle import judge
from wal_sink.demo.postgresql import Postgresql
from wal_sink.demo.queries import in_source, in_table
from wal_sink.demo.report import Comparison, comparison
from wal_sink.demo.servers.postgresql import REPLICATES, Server, Standby
from wal_sink.demo.stores import Stores


class FailoverReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome; the first four numbers are of the table that wal_sink wrote."""

    expected: int
    found: int
    missing: int
    extra: int
    control_missing: int
    """Rows that `foreachBatch` had written, and that are lost."""
    not_replicated: int
    """Rows of wal_sink that the standby lacked when it was promoted. The log brought them again."""
    seconds: float
    tables: tuple[Comparison, ...]
    server: str

    place: ClassVar[str] = ""
    """It draws no picture."""

    @property
    def conclusion(self) -> str:
        """What the demo has shown, where it has no problems."""
        return (
            f"The promoted standby lacked {self.not_replicated:,} rows of each table. wal_sink: each row"
            f" exactly once, and nobody typed a command. foreachBatch: {self.control_missing:,} rows lost."
        )

    @property
    def problems(self) -> list[str]:
        """What keeps the demo from having shown what it is for; empty when it has."""
        problems = []
        if self.missing or self.extra or not self.expected:
            examples = [text for table in self.tables[:1] for text in table.examples]
            text = "\n  ".join(["The table differs from the source, for example:", *examples])
            problems.append(text)
        if not self.not_replicated:
            problems.append("The standby lacked no row: this failover proved nothing.")
        if not self.control_missing:
            problems.append("The control has lost no row: this failover proved nothing.")
        return problems


def run(folder: Path, *, flights: int, say: Callable[[str], None]) -> FailoverReport:
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
        former = Postgresql(standby.uri_of_both, primary)
        former.create()
        source.give()
        with _driver(folder, Stores([former])) as driver:
            say(f"Streaming {source.rows:,} flights, which the standby gets …")
            driver.reach(lambda: _have(former, source.rows))
            standby.await_caught_up()
            standby.cut_off()
            source.give()
            say(f"The link to the standby is cut. Streaming up to {source.rows:,} flights …")
            driver.reach(lambda: _have(former, source.rows))
            after = Postgresql(standby.uri_of_both, standby)
            not_replicated = former.count(KEPT.table) - after.count(KEPT.table)
            primary.kill()
            standby.promote()
            source.give()
            say(
                f"The primary is killed, and the standby is promoted. It lacks {not_replicated:,} rows."
                f" Streaming up to {source.rows:,} flights …"
            )
            driver.reach(
                lambda: all(_is_read(folder, query.checkpoint, source) for query in QUERIES)
            )
            (folder / OVER).touch()
            driver.finish()
        say("Comparing the tables with the source …")
        tables = tuple(
            comparison(
                query.name,
                query.sink,
                query.table,
                judge(in_source(source.table, query), in_table(after.rows(query))),
                after.target,
            )
            for query in QUERIES
        )
    kept, lost = tables
    return FailoverReport(
        expected=kept.expected,
        found=kept.found,
        missing=kept.missing,
        extra=kept.extra,
        control_missing=lost.missing,
        not_replicated=not_replicated,
        seconds=round(time.monotonic() - began_s, 1),
        tables=tables,
        server=primary.title,
    )


def _driver(folder: Path, stores: Stores) -> Driver:
    return Driver(
        ["-m", "wal_sink.demo.failover_app", str(folder), stores.addresses],
        folder / "driver.log",
        {"TZ": "UTC"},
        folder,
        patience_s=900,  # on a busy machine, too
    )


def _have(store: Postgresql, rows: int) -> bool:
    """Return True if both tables have that number of rows."""
    return min(store.count(KEPT.table), store.count(LOST.table)) >= rows


def _is_read(folder: Path, checkpoint: str, source: Source) -> bool:
    """Return True if Spark has completed an epoch for each file."""
    return (folder / checkpoint / "commits" / str(source.files - 1)).exists()
