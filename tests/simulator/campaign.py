"""Many histories, in some processes, until the time is over or one fails."""

from __future__ import annotations

import gc
import itertools
import logging
import multiprocessing
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.simulator import machine
from tests.simulator.history import Outcome, play


class Campaign(NamedTuple):
    """What is to be played."""

    seed: int
    """Of the first history; the others have the numbers after it."""
    histories: int | None = None
    """How many; None: as many as there is time for."""
    seconds: float | None = None
    """How long; None: until all are played."""
    processes: int = 1
    go_on: bool = False
    """True to go on after a failure."""


@dataclass
class Played:
    """What came of it."""

    histories: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Of all processes."""
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[Outcome] = field(default_factory=list)


def run(
    campaign: Campaign,
    progress: Callable[[int], None] = lambda _histories: None,
    failed: Callable[[Outcome], None] = lambda _outcome: None,
) -> Played:
    """Play in as many processes as wanted.

    :param progress: told how many histories were played, again and again.
    :param failed: told of each failure as it comes.
    """
    played, began_s = Played(), time.monotonic()
    seeds = itertools.count(campaign.seed)
    if campaign.histories is not None:
        seeds = itertools.islice(seeds, campaign.histories)  # type: ignore[assignment]
    context = multiprocessing.get_context("spawn")
    with context.Pool(campaign.processes, prepare) as pool:
        while batch := [*itertools.islice(seeds, 50 * campaign.processes)]:
            for seconds, outcome in pool.imap_unordered(_timed, batch, chunksize=10):
                played.histories += 1
                played.cpu_seconds += seconds
                played.counts.update(outcome.counts)
                if outcome.violations:
                    played.failures.append(outcome)
                    failed(outcome)
            progress(played.histories)
            played.seconds = time.monotonic() - began_s
            over = campaign.seconds is not None and played.seconds > campaign.seconds
            if over or (played.failures and not campaign.go_on):
                break
    return played


def _timed(seed: int) -> tuple[float, Outcome]:
    began_s = time.process_time()
    outcome = play_safely(seed)
    return time.process_time() - began_s, outcome


def play_safely(seed: int) -> Outcome:
    """Play one history; an error of the simulator is a failure of its seed, and the others are played."""
    try:
        return play(seed)
    except Exception:  # noqa: BLE001 - whatever it is, the seed shows it again
        return Outcome(seed, (traceback.format_exc(),), Counter())


def prepare() -> None:
    """Let this process be the simulated machine.

    Most of what a history makes is gone by reference counting; to look for cycles takes a fifth of the time.
    """
    machine.install()
    gc.freeze()
    gc.set_threshold(100_000)
    logging.getLogger("wal_sink").addHandler(logging.NullHandler())
    logging.getLogger("wal_sink").propagate = False
