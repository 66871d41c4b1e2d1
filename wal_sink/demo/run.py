"""Runs the demo: starts the application, kills it where it hurts, starts it again, compares."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa

from wal_sink.demo.connect_server import ConnectServer
from wal_sink.demo.crash import Driver
from wal_sink.demo.kills import KILLS, Kill, discarded_rows, window_hit
from wal_sink.demo.oracle import judge
from wal_sink.demo.queries import (
    FLIGHTS,
    QUERIES,
    TENTH,
    epochs,
    in_source,
    in_table,
    write_sources,
)
from wal_sink.demo.report import Comparison, Death, Report, comparison, draw, report
from wal_sink.demo.stores import Stores
from wal_sink.demo.watch import Sample, Watch
from wal_sink.testing.pauses import PAUSES, Pause, pauses


def run(
    folder: Path,
    picture: Path,
    *,
    targets: Sequence[str],
    flights: int,
    connect: bool,
    say: Callable[[str], None],
    sampled: Callable[[Sample], None],
) -> Report:
    """Run the demo in an empty folder.

    :param targets: one or several of `stores.STORES`.
    :param flights: how many to stream.
    :param connect: run the queries in a Spark Connect server; each kill hits the server and its client.
    :param picture: the file to draw, its suffix says the format.
    :param say: called with what happens, a line each.
    :param sampled: called with how far the queries are, every second, on another thread.
    :raises WalSinkError: the demo could not be run to its end; its outcome is in the report.
    """
    began = time.monotonic()
    with Stores.start(targets, folder, say) as stores:
        sources = write_sources(folder, flights)
        sizes = {name: source.num_rows for name, source in sources.items()}
        say(f"Streaming {sizes[FLIGHTS.source]:,} flights, and every tenth of them twice more …")
        number = epochs(sizes[FLIGHTS.source])
        with Watch(folder, stores, sizes, number, sampled) as watch:
            application = _Application(folder, stores, connect=connect)
            deaths = [_die(application, watch, kill, kill.epoch(number), say) for kill in KILLS]
            with application.started("last") as driver:
                driver.finish()
        say("Comparing the tables with the source …")
        comparisons = [*_compare(stores, sources)]
        draw(picture, watch.samples, deaths)
        target, title = stores.targets, stores.title
    seconds = time.monotonic() - began
    return report(comparisons, deaths, seconds, str(picture), target=target, server=title)


class _Application:
    """The application that is killed: a driver, or a Connect server and its client.

    :param connect: whether it is the second.
    """

    def __init__(self, folder: Path, stores: Stores, *, connect: bool) -> None:
        self.folder, self.stores, self._connect = folder, stores, connect
        self._processes: list[Driver] = []

    @contextmanager
    def started(self, name: str, where: Sequence[Pause] = ()) -> Iterator[Driver]:
        """Start it, and provide the process of the application; leaving the block kills what still runs.

        :param name: of this start, for the names of its outputs.
        :param where: points at which it pauses to be killed.
        """
        environment = {"TZ": "UTC", PAUSES: pauses(*where)}
        arguments = ["-m", "wal_sink.demo.app", str(self.folder), self.stores.addresses]
        with ExitStack() as stack:
            self._processes = []
            if self._connect:
                zone = {"spark.sql.session.timeZone": "UTC"}
                server = ConnectServer(
                    self.folder, *where, settings=zone, environment={"TZ": "UTC"}
                )
                self._processes.append(stack.enter_context(server))
                arguments.append(server.url)
            driver = Driver(
                arguments,
                self.folder / f"driver-{name}.log",
                environment,
                self.folder,
                patience_s=900,  # on a busy machine, too
            )
            self._processes.append(stack.enter_context(driver))
            yield driver

    def kill(self) -> None:
        """SIGKILL all of it."""
        for process in self._processes:
            process.kill()


def _die(
    application: _Application, watch: Watch, kill: Kill, epoch: int, say: Callable[[str], None]
) -> Death:
    """Start the application, kill it when all queries have reached their points; say what that leaves."""
    folder, stores = application.folder, application.stores
    points = kill.pauses(folder, epoch)
    with application.started(str(epoch), points) as driver:
        driver.reach(lambda: all(Path(point.marker).exists() for point in points))
        application.kill()
    death = Death(
        window=window_hit(folder, FLIGHTS, epoch, stores),
        epoch=epoch,
        rows_discarded=sum(discarded_rows(folder, query) for query in (FLIGHTS, TENTH)),
        seconds=round(watch.seconds, 1),
    )
    say(
        f"SIGKILL in epoch {death.epoch}, {death.window}:"
        f" {death.rows_discarded:,} logged rows are thrown away"
    )
    return death


def _compare(stores: Stores, sources: dict[str, pa.Table]) -> Iterator[Comparison]:
    """Compare every table of every store with its source; the control writes to the first one."""
    for number, store in enumerate(stores.all):
        for query in QUERIES if number == 0 else [q for q in QUERIES if q.sink == "wal_sink"]:
            verdict = judge(in_source(sources[query.source], query), in_table(store.rows(query)))
            yield comparison(query.name, query.sink, query.table, verdict, store.target)
