"""Many histories, one after the other in each of some processes, until the time is over or one fails."""

from __future__ import annotations

import functools
import gc
import itertools
import logging
import multiprocessing
import queue
import time
import traceback
from collections import Counter
from collections.abc import Callable
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from typing import NamedTuple

from tests.simulator import machine
from tests.simulator.history import Outcome, play
from tests.simulator.swarm import FAULTS
from wal_sink.targets import registry


class Campaign(NamedTuple):
    """What is to be played."""

    seed: int
    """Of the first history; the others have the numbers after it."""
    histories: int | None = None
    """How many; None: as many as there is time for."""
    seconds: float | None = None
    """How long; None: until all are played."""
    processes: int = 1
    among: tuple[str, ...] = FAULTS
    """The faults from which each history draws."""
    go_on: bool = False
    """Whether to go on after a failure."""


class Played(NamedTuple):
    """What came of it."""

    histories: int
    seconds: float
    """Without the time in which the processes start."""
    cpu_seconds: float
    """Of all processes; tells more than `seconds` where the machine has other work, too."""
    counts: Counter[str]
    failures: list[Outcome]

    @property
    def per_second(self) -> float:
        """Histories a second."""
        return self.histories / self.seconds if self.seconds else 0.0

    @property
    def per_cpu_second(self) -> float:
        """Histories a second of CPU time."""
        return self.histories / self.cpu_seconds if self.cpu_seconds else 0.0


class _Took(NamedTuple):
    """How long a process has played."""

    seconds: float
    cpu_seconds: float


_AT_ONCE = 20
"""Histories between two reports of a process."""


def run(
    campaign: Campaign,
    progress: Callable[[int], None] = lambda _histories: None,
    failed: Callable[[Outcome], None] = lambda _outcome: None,
) -> Played:
    """Play in as many processes as wanted.

    :param progress: told how many histories were played, again and again.
    :param failed: told of each failure as it comes.
    """
    context = multiprocessing.get_context("spawn")
    reports: Queue[list[Outcome] | _Took] = context.Queue()
    stop = context.Event()
    players = [
        context.Process(target=_play, args=(campaign, number, reports, stop), daemon=True)
        for number in range(campaign.processes)
    ]
    for player in players:
        player.start()
    histories, counts, failures = 0, Counter[str](), list[Outcome]()
    left, seconds, cpu_seconds = len(players), 0.0, 0.0
    while left:
        try:
            outcomes = reports.get(timeout=_LOOK_S)
        except queue.Empty:
            if any(player.exitcode for player in players):
                raise RuntimeError("a process of the simulator died") from None
            continue
        if isinstance(outcomes, _Took):
            left, seconds = left - 1, max(seconds, outcomes.seconds)
            cpu_seconds += outcomes.cpu_seconds
            continue
        for outcome in outcomes:
            histories += 1
            counts.update(outcome.counts)
            if outcome.violations:
                failures.append(outcome)
                failed(outcome)
        if failures and not campaign.go_on:
            stop.set()
        progress(histories)
    for player in players:
        player.join()
    return Played(histories, seconds, cpu_seconds, counts, failures)


_LOOK_S = 1.0


def _play(
    campaign: Campaign, number: int, reports: Queue[list[Outcome] | _Took], stop: Event
) -> None:
    """Play every n-th history in this process; report what came of them, then how long it took."""
    prepare()
    began_s, cpu_began_s = time.monotonic(), time.process_time()
    until_s = began_s + campaign.seconds if campaign.seconds is not None else float("inf")
    outcomes: list[Outcome] = []
    for each in itertools.count(number, campaign.processes):
        over = campaign.histories is not None and each >= campaign.histories
        if over or stop.is_set() or time.monotonic() > until_s:
            break
        outcomes.append(played(campaign.seed + each, campaign.among))
        if len(outcomes) == _AT_ONCE or outcomes[-1].violations:
            reports.put(outcomes)
            outcomes = []
    reports.put(outcomes)
    reports.put(_Took(time.monotonic() - began_s, time.process_time() - cpu_began_s))


def played(seed: int, among: tuple[str, ...] = FAULTS) -> Outcome:
    """Play one history; an error of the simulator is a failure of its seed, and the others are played."""
    try:
        return play(seed, among=among)
    except Exception:  # noqa: BLE001 - whatever it is, the seed shows it again
        return Outcome(seed, (traceback.format_exc(),), Counter(), frozenset())


def prepare() -> None:
    """Let this process be the simulated machine.

    Most of what a history makes is gone by reference counting; to look for cycles takes a fifth of the time.
    """
    machine.install()
    gc.freeze()
    gc.set_threshold(100_000)
    registry._registered = functools.cache(registry._registered)
    logger = logging.getLogger("wal_sink")
    logger.setLevel(logging.WARNING)
    logger.propagate = False
