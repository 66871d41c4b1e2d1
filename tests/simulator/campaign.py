"""Plays many histories in several processes, until the time is over or a history fails."""

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
    """The histories to play."""

    seed: int
    """The seed of the first history; the next history has the next number."""
    histories: int | None = None
    """The number of histories; None for no limit."""
    seconds: float | None = None
    """The time limit; None for no limit."""
    processes: int = 1


@dataclass
class Played:
    """The result of a campaign."""

    histories: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[Outcome] = field(default_factory=list)


def run(campaign: Campaign, progress: Callable[[int], None] = lambda _histories: None) -> Played:
    """Play histories until the time is over, or one fails.

    :param progress: called with the number of histories so far.
    """
    played, began_s = Played(), time.monotonic()
    seeds = itertools.count(campaign.seed)
    if campaign.histories is not None:
        seeds = itertools.islice(seeds, campaign.histories)  # type: ignore[assignment]
    context = multiprocessing.get_context("spawn")
    with context.Pool(campaign.processes, prepare) as pool:
        while batch := [*itertools.islice(seeds, 50 * campaign.processes)]:
            for outcome in pool.imap_unordered(play_safely, batch, chunksize=10):
                played.histories += 1
                played.counts.update(outcome.counts)
                if outcome.violations:
                    played.failures.append(outcome)
            progress(played.histories)
            played.seconds = time.monotonic() - began_s
            over = campaign.seconds is not None and played.seconds > campaign.seconds
            if over or played.failures:
                break
    return played


def play_safely(seed: int) -> Outcome:
    """Play one history; an exception in the simulator is a failure of its seed."""
    try:
        return play(seed)
    except Exception:  # noqa: BLE001 - its seed reproduces it
        return Outcome(seed, (traceback.format_exc(),), Counter())


def prepare() -> None:
    """Install the simulated machine in this process.

    Reference counting frees most objects of a history, so rare garbage collections save a fifth of the time.
    """
    machine.install()
    gc.freeze()
    gc.set_threshold(100_000)
    logging.getLogger("wal_sink").addHandler(logging.NullHandler())
    logging.getLogger("wal_sink").propagate = False
