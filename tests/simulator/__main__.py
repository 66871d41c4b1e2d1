"""`make simulate`: plays random histories, and prints the seed of each failure."""

from __future__ import annotations

import argparse
import os
import random
import sys

from rich.console import Console
from rich.table import Table

from tests.simulator.campaign import Campaign, Played, prepare, run
from tests.simulator.history import play
from tests.simulator.trace import Trace


def main() -> int:
    """Return the exit code: 1 if a history failed."""
    arguments = _arguments()
    if arguments.seed is not None and arguments.histories is None and arguments.minutes is None:
        return _replay(arguments.seed)
    seed = random.randrange(2**32) if arguments.seed is None else arguments.seed
    minutes = arguments.minutes
    if minutes is None and arguments.histories is None:
        minutes = 1.0
    console = Console(highlight=False)
    console.print(f"seeds from {seed} on, in {arguments.processes} processes")
    with console.status("") as status:
        played = run(
            Campaign(
                seed,
                arguments.histories,
                None if minutes is None else minutes * 60,
                arguments.processes,
            ),
            lambda histories: status.update(f"{histories:,} histories"),
        )
    report(console, played)
    return 1 if played.failures else 0


def report(console: Console, played: Played) -> None:
    """Print the counts of events, and the failures."""
    table = Table("what happened", "times", box=None)
    for what, times in sorted(played.counts.items()):
        table.add_row(what, f"{times:,}")
    console.print(table)
    console.print(f"{played.histories:,} histories in {played.seconds:.0f} s")
    for outcome in played.failures:
        console.print(outcome.violations[0], markup=False, soft_wrap=True)
        console.print(f'    make simulate ARGS="--seed {outcome.seed}"')


def _replay(seed: int) -> int:
    prepare()
    outcome = play(seed, Trace(print))
    for violation in outcome.violations:
        sys.stdout.write(f"VIOLATION: {violation}\n")
    return 1 if outcome.violations else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='make simulate ARGS="…"', description=__doc__)
    parser.add_argument("--minutes", type=float, help="how long to play (default: 1)")
    parser.add_argument("--histories", type=int, help="how many histories to play")
    parser.add_argument(
        "--seed", type=int, help="of the first history; alone: replay this one, with a trace"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
