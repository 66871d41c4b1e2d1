"""The demo of kills: SIGKILLs the application at three points of an epoch; compares tables and source."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from wal_sink.demo.app import Application, start_driver
from wal_sink.demo.local_spark import ConnectServer, Driver
from wal_sink.demo.outcome import KillOutcome, Report, comparison, report
from wal_sink.demo.pauses import Pause, Point
from wal_sink.demo.progress import Sample, draw, repeated, take_sample
from wal_sink.demo.queries import CONTROL, FLIGHTS, TENTH, Query, epochs, write_sources
from wal_sink.demo.stores import Stores
from wal_sink.wal.location import locate
from wal_sink.wal.store import newest


class Kill(NamedTuple):
    """A SIGKILL of the application, when each of the three queries has paused at its point."""

    window: str
    """The point, as the output of the demo names it."""
    twelfth: int
    """The epoch of the kill, in twelfths of all epochs, from 0."""
    point: Point
    """The point at which the queries with wal_sink pause."""
    control: Point
    """The point at which the query with `foreachBatch` pauses."""

    def epoch(self, epochs: int) -> int:
        """Return the epoch of the kill in a demo with `epochs` epochs."""
        return self.twelfth * epochs // 12

    def pauses(self, folder: Path, epoch: int) -> list[Pause]:
        """Return the pause of each query."""
        points = {FLIGHTS.table: self.point, TENTH.table: self.point, CONTROL.table: self.control}
        return [
            Pause(
                point=point,
                table=table,
                epoch=epoch,
                marker=str(folder / f"reached-{epoch}-{table}"),
            )
            for table, point in points.items()
        ]


KILLS = (
    Kill("while a task writes", 2, "write", "write"),
    Kill("between manifest and commits/N", 5, "commit returned", "commit returned"),
    Kill("while an epoch is being flushed", 8, "flushing", "write"),
)


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
    :param flights: the number of flights to stream.
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
        outcomes: list[KillOutcome] = []
        samples: list[Sample] = []
        first_start_s = time.monotonic()

        def sample() -> None:
            seconds = time.monotonic() - first_start_s
            samples.append(take_sample(folder, stores, sizes, number, seconds))
            on_sample(samples[-1])

        with repeated(sample):
            for kill in KILLS:
                epoch = kill.epoch(number)
                points = kill.pauses(folder, epoch)
                with _application(folder, stores, str(epoch), points, connect=connect) as processes:
                    processes[-1].reach(_all_exist([Path(point.marker) for point in points]))
                    for process in processes:
                        process.kill()
                outcome = KillOutcome(
                    window=kill.window,
                    epoch=epoch,
                    rows_discarded=sum(discarded_rows(folder, query) for query in (FLIGHTS, TENTH)),
                    seconds=round(time.monotonic() - first_start_s, 1),
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
        draw(picture, samples, outcomes)
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


def discarded_rows(folder: Path, query: Query) -> int:
    """Count the rows that are published and not checkpointed. Spark computes these rows again."""
    location = locate(str(folder / query.checkpoint))
    checkpoint = location.open_checkpoint()
    state = newest(location.open_log(checkpoint.query_id()))
    if state is None or state.last.epoch == checkpoint.last_commit():
        return 0
    return state.last.rows
