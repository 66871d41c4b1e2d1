"""What a history consists of: stores, processes, and the setting that bounds them, as tuples."""

from __future__ import annotations

from typing import Any, NamedTuple

from wal_sink.model.ledger import LedgerRow


class Setting(NamedTuple):
    """What is explored: who is there, what may happen, and which conditions hold."""

    epochs: int = 2
    runs: int = 2
    flushers: int = 1
    targets: int = 1
    kind: str = "cells"
    """`cells`: rows that may be repeated; `tx`: rows in a transaction with the ledger row; `lists`: rows that
    need new timestamps for each sending."""
    sendings: int = 2
    """How often rows of lists are sent."""
    window: int = 1
    """How many epochs are written at once."""
    zombie: bool = False
    """The worker in which `commit()` runs outlives its driver."""
    single: bool = True
    """A run starts only when those before it are dead, as Spark demands."""
    trim: bool = True
    ticks: int = 0
    """How often the clock ticks; `wal.retention` is one tick, or nothing where the clock stands."""
    budget: int = 0
    """How many epochs may wait for the flush; 0: no bound."""
    refuse: bool = False
    accept: bool = False
    """The target refuses cell 1 of each attempt; it may also take it, as it was repaired."""
    lost: bool = False
    cached: bool = False
    """Answers of publish and finish get lost; a flusher keeps the ledger row that it knows."""
    swallow: bool = False
    """A `foreachBatch` function keeps an error to itself: an epoch is completed that nobody published."""
    purge: bool = False
    """Spark deletes old files of offsets/ and commits/."""
    power: int = 0
    """How often the power fails: all processes die, and files that are not synced may be gone."""
    lists: tuple[tuple[int, ...], ...] = ()
    """The targets that run r names."""
    restores: tuple[str, ...] = ()
    times: int = 1
    """What may be restored from a copy, as `target` or `checkpoint+log`; how often."""
    slow: str = ""
    """A copy of checkpoint and log is not of one moment: which of them is copied first."""
    stopped: bool = True
    """Flushers are dead when something is restored or adopted; else they may be paused, and go on."""
    places: tuple[int, ...] = ()
    """Where run r is: 1 is a copy of checkpoint and log. Flusher 0 is at place 0, others at place 1."""
    acts: tuple[str, ...] = ()
    ops: int = 1
    """What operators do, and how often: `give up`, `give up missing`, `give up target`, `set-mark`, `adopt`,
    `delete log`."""
    off: tuple[str, ...] = ()
    """Conditions that are switched off: see `conditions.py`."""


class Run(NamedTuple):
    """A run of the query."""

    at: str = "new"
    n: int = 0
    v: int = 0
    """Variant of the source offsets."""
    fresh: bool = True
    """In its first batch, which may be a replay."""
    after: int = -1
    """The run that had opened last when the batch was planned."""
    saw: bool = False
    """The epoch is a replay: nothing was published."""


class Flusher(NamedTuple):
    """A flusher in the middle of a pass."""

    place: int = 0
    at: str = "idle"
    t: int = 0
    com: int = -1
    st: int = -1
    """The state that it has read."""
    same: bool = True
    """That state is still the newest one."""
    row: LedgerRow | None = None
    new: Any = None
    """What it is about to make: a state, or a ledger row."""
    win: tuple[tuple[int, int], ...] = ()
    """Attempts that it writes, as epoch and run."""
    i: int = 0
    """Which cell of them is next."""
    after: Any = -1
    """The state with the mark that follows; or why it is refused."""
    names: tuple[tuple[str, int, int], ...] = ()
    """Objects that it deletes."""


class Log(NamedTuple):
    """Checkpoint and log at one place."""

    off: tuple[int, ...]
    """Variant of offsets/N; 0: not there."""
    com: tuple[int, ...]
    """1 + run that wrote commits/N; 0: not there."""
    done: tuple[tuple[int, int], ...]
    """Variant and run of the attempt at N that Spark completed last."""
    wet: frozenset[tuple[str, int, int]]
    """Files that are not synced, as kind, epoch and run."""
    st: int
    """The state; -1: there is no log."""
    man: frozenset[int]
    seg: frozenset[tuple[int, int]]


class Ledger(NamedTuple):
    """A target: its ledger row and its rows."""

    row: LedgerRow | None = None
    cells: tuple[tuple[int, int, int], ...] = ()
    """Epoch, cell, run; of lists, a cell is there once for each time that it shows. Sorted."""
    key: int = -1
    """Epoch whose row 0 is seen at the key that all epochs share."""
    sent: tuple[tuple[int, int, int], ...] = ()
    """Of lists: epoch, cell, sending that is seen."""


class Act(NamedTuple):
    """An operator's command in the middle."""

    at: str = ""
    t: int = 0
    row: LedgerRow | None = None
    new: LedgerRow | None = None
    place: int = 0


class World(NamedTuple):
    """Everything, between two steps."""

    logs: tuple[Log | None, ...]
    ledgers: tuple[Ledger, ...]
    refused: frozenset[tuple[int, int, int]]
    """refused/: target, epoch, run."""
    kept: frozenset[tuple[int, int]]
    """Epoch and run: attempts that Spark completed."""
    now: int
    ids: int
    """How many log ids were drawn."""
    runs: tuple[Run, ...]
    flushers: tuple[Flusher, ...]
    act: Act
    vouched: frozenset[tuple[int, int]]
    """Target and epoch for which an operator answers."""
    back: bool
    """Something was restored, copied or changed by hand."""
    copy: tuple[Any, ...]
    """What a backup has, as `(checkpoint, log, ledgers)`."""
    left: tuple[int, int, int]
    """Restores, acts, power losses to come."""


class BrokenPromise(Exception):
    """A promise does not hold."""


QUERY = "q"


def put(items: tuple[Any, ...], index: int, item: Any) -> tuple[Any, ...]:
    """Return a tuple with one item replaced."""
    return (*items[:index], item, *items[index + 1 :])


def top(files: tuple[int, ...]) -> int:
    """Return the last epoch of offsets/ or commits/."""
    for epoch in range(len(files) - 1, -1, -1):
        if files[epoch]:
            return epoch
    return -1


def log_of(world: World, place: int) -> Log:
    """Return checkpoint and log at a place where there are some."""
    log = world.logs[place]
    assert log is not None
    return log


def with_log(world: World, place: int, **changes: Any) -> World:
    """Return the world with a changed checkpoint or log; whoever has read a state knows an old one then."""
    log = log_of(world, place)
    new = log._replace(**changes)
    flushers = world.flushers
    if "st" in changes:
        flushers = tuple(
            f._replace(same=False) if f.same and f.st >= 0 and f.place == place else f
            for f in flushers
        )
    return world._replace(logs=put(world.logs, place, new), flushers=flushers)
