"""A history as tuples: stores, processes, and the setting that bounds them."""

from __future__ import annotations

from typing import Any, NamedTuple

from wal_sink.model.ledger import LedgerRow


class Setting(NamedTuple):
    """The setting of a search: which processes there are, what may happen, and which conditions hold."""

    epochs: int = 2
    runs: int = 2
    flushers: int = 1
    targets: int = 1
    kind: str = "cells"
    """`cells`: rows that may be repeated; `tx`: rows in a transaction with the ledger row; `lists`: rows
    that need new timestamps for each sending."""
    sendings: int = 2
    """How often rows of lists may be sent."""
    window: int = 1
    """How many epochs are written at once."""
    zombie: bool = False
    """True if the worker in which `commit()` runs outlives its driver."""
    single: bool = True
    """True if a run starts only when the earlier runs are dead, as Spark demands."""
    trim: bool = True
    ticks: int = 0
    """How often the clock ticks. `wal.retention` is one tick; 0 if the clock does not tick."""
    budget: int = 0
    """How many epochs may be pending; 0 for no limit."""
    refuse: bool = False
    accept: bool = False
    """`refuse`: the target refuses cell 1 of each attempt. `accept`: it may also accept it, after a
    repair."""
    lost: bool = False
    cached: bool = False
    """`lost`: answers of publish and finish may be lost. `cached`: a flusher keeps the ledger row that it
    has read."""
    swallow: bool = False
    """True if a `foreachBatch` function suppresses an error, so that an epoch is completed that no run
    published."""
    purge: bool = False
    """True if Spark deletes old files of offsets/ and commits/."""
    power: int = 0
    """How often the power fails. All processes die, and files that are not synced may be lost."""
    lists: tuple[tuple[int, ...], ...] = ()
    """The targets that each run names."""
    restores: tuple[str, ...] = ()
    times: int = 1
    """`restores`: what may be restored from a copy, such as `target` or `checkpoint+log`. `times`: how
    often."""
    slow: str = ""
    """The part that is copied first, if a copy of checkpoint and log is not made at one moment; empty if
    it is."""
    stopped: bool = True
    """True if flushers are dead when something is restored or adopted. Otherwise they may be paused, and
    continue."""
    places: tuple[int, ...] = ()
    """The place of each run: 1 is a copy of checkpoint and log. Flusher 0 is at place 0, the others at
    place 1."""
    acts: tuple[str, ...] = ()
    ops: int = 1
    """`acts`: what operators may do: `give up`, `give up missing`, `give up target`, `set-mark`, `adopt`,
    `delete log`. `ops`: how often."""
    off: tuple[str, ...] = ()
    """Conditions that are switched off, see `conditions.py`."""


class Run(NamedTuple):
    """A run of the query."""

    at: str = "new"
    n: int = 0
    v: int = 0
    """Variant of the source offsets."""
    fresh: bool = True
    """True in the first batch, which may be a replay."""
    after: int = -1
    """The run that had opened last when the batch was planned."""
    saw: bool = False
    """True if the epoch is a replay, for which nothing was published."""


class Flusher(NamedTuple):
    """A flusher in the middle of a pass."""

    place: int = 0
    at: str = "idle"
    t: int = 0
    com: int = -1
    st: int = -1
    """The state that the flusher has read."""
    same: bool = True
    """True if `st` is still the newest state."""
    row: LedgerRow | None = None
    new: Any = None
    """What the flusher is about to create: a state, or a ledger row."""
    win: tuple[tuple[int, int], ...] = ()
    """Attempts that the flusher writes, as epoch and run."""
    i: int = 0
    """Which cell of these attempts is next."""
    after: Any = -1
    """The state with the next mark, or the name of the error that refuses it."""
    names: tuple[tuple[str, int, int], ...] = ()
    """Objects that the flusher deletes."""


class Log(NamedTuple):
    """Checkpoint and log at one place."""

    off: tuple[int, ...]
    """Variant of offsets/N; 0 if it does not exist."""
    com: tuple[int, ...]
    """1 + the run that wrote commits/N; 0 if it does not exist."""
    done: tuple[tuple[int, int], ...]
    """Variant and run of the attempt at N that Spark completed last."""
    wet: frozenset[tuple[str, int, int]]
    """Files that are not synced, as kind, epoch and run."""
    st: int
    """Number of the state; -1 if there is no log."""
    man: frozenset[int]
    seg: frozenset[tuple[int, int]]


class Ledger(NamedTuple):
    """A target: its ledger row and its rows."""

    row: LedgerRow | None = None
    cells: tuple[tuple[int, int, int], ...] = ()
    """Epoch, cell and run, sorted. A cell of a list is contained once for each time that it is visible."""
    key: int = -1
    """The epoch whose row 0 is visible at the key that all epochs share."""
    sent: tuple[tuple[int, int, int], ...] = ()
    """Epoch, cell and visible sending, for lists."""


class Act(NamedTuple):
    """An operator's command between its two steps."""

    at: str = ""
    t: int = 0
    row: LedgerRow | None = None
    new: LedgerRow | None = None
    place: int = 0


class World(NamedTuple):
    """Everything between two steps."""

    logs: tuple[Log | None, ...]
    ledgers: tuple[Ledger, ...]
    refused: frozenset[tuple[int, int, int]]
    """Rows in refused/: target, epoch, run."""
    kept: frozenset[tuple[int, int]]
    """Attempts that Spark completed: epoch, run."""
    now: int
    ids: int
    """How many log ids were created."""
    runs: tuple[Run, ...]
    flushers: tuple[Flusher, ...]
    act: Act
    vouched: frozenset[tuple[int, int]]
    """Target and epoch that an operator has accepted as they are."""
    back: bool
    """True if something was restored, copied or changed by hand."""
    copy: tuple[Any, ...]
    """The parts of a backup: checkpoint, log, ledgers."""
    left: tuple[int, int, int]
    """How many restores, acts and power losses may still happen."""


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
    """Return checkpoint and log at a place that has both."""
    log = world.logs[place]
    assert log is not None
    return log


def with_log(world: World, place: int, **changes: Any) -> World:
    """Return the world with a changed checkpoint or log; the state that processes have read is then old."""
    log = log_of(world, place)
    new = log._replace(**changes)
    flushers = world.flushers
    if "st" in changes:
        flushers = tuple(
            f._replace(same=False) if f.same and f.st >= 0 and f.place == place else f
            for f in flushers
        )
    return world._replace(logs=put(world.logs, place, new), flushers=flushers)
