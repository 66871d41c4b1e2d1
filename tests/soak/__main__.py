"""`make soak`: kills the processes of a query with nine features for some minutes, and compares each cell.

With `--cluster`, a standalone Spark cluster reads a topic of Kafka into three nodes of Cassandra, PostgreSQL
and Delta Lake, from one log. Each process is killed and paused. The picture is wal-sink-soak.svg.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.soak.cells import CellVerdict
from tests.soak.cluster import ClusterSoak
from tests.soak.cluster_report import draw, tables
from tests.soak.features import FeaturesOutcome, FeaturesSoak
from tests.support.class_archive import CASSANDRA, SPARK

_WIDTH = 120
"""The width of the output if it is not a terminal."""


def main() -> int:
    """Run a soak; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument(
        "--cluster", action="store_true", help="faults of a cluster with three targets"
    )
    parser.add_argument(
        "--picture", type=Path, default=Path("wal-sink-soak.svg"), help="of --cluster"
    )
    args = parser.parse_args()
    console = Console(highlight=False, width=max(_WIDTH, Console().width))
    console.print(f"seed {args.seed}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that child processes are ended
    for archive in (SPARK, CASSANDRA):  # starts are faster if the tests have made the archives
        os.environ.setdefault(archive.variable, archive.options)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="wal_sink-soak-") as folder:
        if not args.cluster:
            outcome = FeaturesSoak(Path(folder), args.seed, console.print).run_for(
                60 * args.minutes
            )
            return _tell(console, outcome, time.monotonic() - began)
        with ClusterSoak(Path(folder), args.seed, console.print) as soak:
            run_for = soak.run_for(60 * args.minutes)
        draw(args.picture, run_for)
        for table in tables(run_for):
            console.print(table)
        return 0 if run_for.exact else 1


def _tell(console: Console, outcome: FeaturesOutcome, seconds: float) -> int:
    """Print the result of a soak of features; return the exit code."""
    cells, wanted = outcome.cells, outcome.wanted
    deaths = ", ".join(f"{name} {count}" for name, count in sorted(outcome.deaths.items()))
    console.print(
        f"{deaths}; {outcome.starts} starts, {wanted.epochs} epochs, {wanted.changes:,} changes;"
        f" {outcome.quarantined} rows are in quarantine;"
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
