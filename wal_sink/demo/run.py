"""Runs the demo of kills: starts the application, kills it at three points, and compares the tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from wal_sink.demo.app import Application
from wal_sink.demo.connect_server import ConnectServer
from wal_sink.demo.crash import Driver
from wal_sink.demo.kills import KILLS, discarded_rows, window_hit
from wal_sink.demo.pauses import PAUSES, Pause, pauses
from wal_sink.demo.queries import CONTROL, FLIGHTS, TENTH, epochs, write_sources
from wal_sink.demo.report import KillOutcome, Report, comparison, draw, report
from wal_sink.demo.stores import Stores
from wal_sink.demo.watch import Sample, Watch


def run(
    folder: Path,
    picture: Path,
    *,
    targets: Sequence[str],
    flights: int,
    connect: bool,
    notify: Callable[[str], None],
    on_sample: Callable[[Sample], None],
) -> Report:
    """Run the demo in an empty folder.

    :param picture: the file for the picture.
    :param targets: names in `stores.STORES`.
    :param flights: how many flights to stream.
    :param connect: True to run the queries in a Spark Connect server. A SIGKILL hits the server and its
        client.
    :param notify: called with a line of text at each step.
    :param on_sample: called with the progress of the queries every second, on another thread.
    :raises WalSinkError: a server or the application failed.
    """
    began_s = time.monotonic()
    with Stores.start(targets, folder, notify) as stores:
        sources = write_sources(folder, flights)
        sizes = {name: source.num_rows for name, source in sources.items()}
        notify(f"Streaming {sizes[FLIGHTS.source]:,} flights, and every tenth of them twice more …")
        number = epochs(sizes[FLIGHTS.source])
        outcomes = []
        with Watch(folder, stores, sizes, number, on_sample) as watch:
            for kill in KILLS:
                epoch = kill.epoch(number)
                points = kill.pauses(folder, epoch)
                with _application(folder, stores, str(epoch), points, connect=connect) as processes:
                    processes[-1].reach(_all_exist([Path(point.marker) for point in points]))
                    for process in processes:
                        process.kill()
                outcome = KillOutcome(
                    window=window_hit(folder, FLIGHTS, epoch, stores),
                    epoch=epoch,
                    rows_discarded=sum(discarded_rows(folder, query) for query in (FLIGHTS, TENTH)),
                    seconds=round(watch.seconds, 1),
                )
                notify(
                    f"SIGKILL in epoch {epoch}, {outcome.window}:"
                    f" {outcome.rows_discarded:,} rows of the log are discarded"
                )
                outcomes.append(outcome)
            with _application(folder, stores, "last", connect=connect) as processes:
                processes[-1].finish()
        notify("Comparing the tables with the source …")
        pairs = [(query, store) for store in stores.all for query in (FLIGHTS, TENTH)]
        pairs.append((CONTROL, stores.first))
        tables = [comparison(query, sources[query.source], store) for query, store in pairs]
        draw(picture, watch.samples, outcomes)
        seconds = time.monotonic() - began_s
        return report(tables, stores, seconds, kills=outcomes, picture=str(picture))


@contextmanager
def _application(
    folder: Path, stores: Stores, name: str, points: Sequence[Pause] = (), *, connect: bool
) -> Iterator[list[Driver]]:
    """Start the application, and provide its processes: first its Connect server, if any, then the driver.

    :param name: part of the name of the file with the driver's output.
    :param points: the points at which the application pauses to be killed.
    """
    with ExitStack() as stack:
        servers = []
        if connect:
            zone = {"spark.sql.session.timeZone": "UTC"}
            server = ConnectServer(folder, *points, settings=zone, environment={"TZ": "UTC"})
            servers.append(stack.enter_context(server))
        application = Application(
            folder=str(folder),
            addresses=stores.addresses,
            remote=servers[0].url if servers else "",
        )
        driver = stack.enter_context(start_driver(application, f"driver-{name}", points))
        yield [*servers, driver]


def _all_exist(files: Sequence[Path]) -> Callable[[], bool]:
    return lambda: all(file.exists() for file in files)


def start_driver(application: Application, name: str, points: Sequence[Pause] = ()) -> Driver:
    """Start the process of the application.

    :param name: name of the file with its output, without `.log`.
    :param points: the points at which it pauses to be killed.
    """
    folder = Path(application.folder)
    return Driver(
        ["-m", "wal_sink.demo.app", msgspec.json.encode(application).decode()],
        folder / f"{name}.log",
        {"TZ": "UTC", PAUSES: pauses(*points)},
        folder,
        patience_s=900,  # for a busy machine
    )
