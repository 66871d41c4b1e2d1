"""Runs the demo: starts the application, kills it where it hurts, starts it again, compares."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from wal_sink.demo.app import Application
from wal_sink.demo.connect_server import ConnectServer
from wal_sink.demo.crash import Driver
from wal_sink.demo.kills import KILLS, Kill, discarded_rows, window_hit
from wal_sink.demo.pauses import PAUSES, Pause, pauses
from wal_sink.demo.queries import CONTROL, FLIGHTS, TENTH, epochs, write_sources
from wal_sink.demo.report import Death, Report, comparison, draw, report
from wal_sink.demo.stores import Stores
from wal_sink.demo.watch import Sample, Watch


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
            application = _Killed(folder, stores, connect=connect)
            deaths = [_die(application, watch, kill, kill.epoch(number), say) for kill in KILLS]
            with application.started("last") as driver:
                driver.finish()
        say("Comparing the tables with the source …")
        pairs = [(query, store) for store in stores.all for query in (FLIGHTS, TENTH)]
        pairs.append((CONTROL, stores.first))
        tables = [comparison(query, sources[query.source], store) for query, store in pairs]
        draw(picture, watch.samples, deaths)
        seconds = time.monotonic() - began
        return report(tables, stores, seconds, kills=deaths, picture=str(picture))


def driver_of(application: Application, name: str, where: Sequence[Pause] = ()) -> Driver:
    """Start the application.

    :param name: of this start, for the name of its output.
    :param where: points at which it pauses to be killed.
    """
    folder = Path(application.folder)
    return Driver(
        ["-m", "wal_sink.demo.app", msgspec.json.encode(application).decode()],
        folder / f"{name}.log",
        {"TZ": "UTC", PAUSES: pauses(*where)},
        folder,
        patience_s=900,  # on a busy machine, too
    )


class _Killed:
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
        with ExitStack() as stack:
            self._processes, remote = [], ""
            if self._connect:
                zone = {"spark.sql.session.timeZone": "UTC"}
                server = ConnectServer(
                    self.folder, *where, settings=zone, environment={"TZ": "UTC"}
                )
                self._processes.append(stack.enter_context(server))
                remote = server.url
            application = Application(
                folder=str(self.folder), addresses=self.stores.addresses, remote=remote
            )
            driver = stack.enter_context(driver_of(application, f"driver-{name}", where))
            self._processes.append(driver)
            yield driver

    def kill(self) -> None:
        """SIGKILL all of it."""
        for process in self._processes:
            process.kill()


def _die(
    application: _Killed, watch: Watch, kill: Kill, epoch: int, say: Callable[[str], None]
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
