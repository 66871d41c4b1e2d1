"""`make soak`: the driver dies 20 times, a Python worker 20 times, Cassandra 10 times.

With `--hostile`: clocks, listings, disks, backups, rows and zombies are against it, for some minutes.
With `--features`: another query, which uses ten features at once, and deaths for some minutes; each cell is
compared, with its write time and the end of its life.
With `--cluster`: a topic of Kafka, read by a standalone cluster of Spark into three nodes of Cassandra,
PostgreSQL and Delta Lake, out of one log; each process is killed, and paused. It draws wal-sink-soak.svg.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import signal
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.class_archive import CASSANDRA, SPARK
from tests.soak.cells import CellVerdict
from tests.soak.cluster import ClusterSoak
from tests.soak.cluster_report import draw, tables
from tests.soak.course import Soak, Victim
from tests.soak.features import FeaturesOutcome, FeaturesSoak
from tests.soak.hostile import HostileSoak

_WIDTH = 120
"""Where the output is no terminal."""


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    for name, kills in (("driver", 20), ("worker", 20), ("cassandra", 10)):
        parser.add_argument(f"--{name}", type=int, default=kills, help="how often it dies")
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--hostile", action="store_true", help="everything is against it")
    other.add_argument("--features", action="store_true", help="ten features at once, and deaths")
    other.add_argument(
        "--cluster", action="store_true", help="everything beside each other, and deaths"
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="of each but the first")
    parser.add_argument("--hours", type=float, help="the same, in hours")
    parser.add_argument(
        "--picture", type=Path, default=Path("wal-sink-soak.svg"), help="of --cluster"
    )
    given = parser.parse_args()
    seconds = 60 * given.minutes if given.hours is None else 3_600 * given.hours
    console = Console(highlight=False, width=max(_WIDTH, Console().width))
    console.print(f"seed {given.seed}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what is started here is ended
    deaths: dict[Victim, int] = {
        "driver": given.driver,
        "worker": given.worker,
        "cassandra": given.cassandra,
    }
    victims = [victim for victim, kills in deaths.items() for _ in range(kills)]
    random.Random(given.seed).shuffle(victims)
    for archive in (
        SPARK,
        CASSANDRA,
    ):  # if the tests have made them: each death is followed by a start
        os.environ.setdefault(archive.variable, archive.options)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="wal_sink-soak-") as folder:
        if given.features:
            features = FeaturesSoak(Path(folder), given.seed, console.print)
            return _tell(console, features.run_for(seconds), time.monotonic() - began)
        if given.cluster:
            with ClusterSoak(Path(folder), given.seed, console.print) as soak:
                found = soak.run_for(seconds)
            draw(given.picture, found)
            for table in tables(found):
                console.print(table)
            return 0 if found.exact else 1
        if given.hostile:
            hostile = HostileSoak(Path(folder), given.seed, console.print)
            outcome = hostile.run_for(seconds)
        else:
            outcome = Soak(Path(folder), given.seed, console.print).run(victims)
    verdict = outcome.verdict
    table = Table(
        "kills", "starts", "epochs", "expected", "found", "missing", "extra", "mixed", "s"
    )
    counts = (
        *(outcome.kills.total(), outcome.starts, outcome.epochs, *verdict[:4]),
        *(len(outcome.mixed), round(time.monotonic() - began)),
    )
    table.add_row(*(f"{count:,}" for count in counts))
    console.print(table)
    if verdict.exact and verdict.expected and not outcome.mixed:
        return 0
    console.print("for example:", *verdict.examples, *outcome.mixed[:5], sep="\n  ")
    return 1


def _tell(console: Console, outcome: FeaturesOutcome, seconds: float) -> int:
    """Print what a soak of features found; return the exit code."""
    cells, wanted = outcome.cells, outcome.wanted
    deaths = ", ".join(f"{name} {count}" for name, count in sorted(outcome.deaths.items()))
    console.print(
        f"{deaths}; {outcome.starts} starts, {wanted.epochs} epochs, {wanted.changes:,} changes;"
        f" {outcome.sent_again} refused rows were sent again, {outcome.left} are refused still;"
        f" {round(seconds)} s"
    )
    table = Table("cells expected", *(name for name in CellVerdict._fields[1:-1]), "mixed epochs")
    table.add_row(*(f"{count:,}" for count in (*cells[:-1], len(wanted.mixed))))
    console.print(table)
    if outcome.exact and cells.expected:
        return 0
    console.print("for example:", *wanted.wrong[:5], *cells.examples, sep="\n  ")
    return 1


if __name__ == "__main__":
    sys.exit(main())
