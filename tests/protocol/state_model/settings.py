"""The settings that are explored with all conditions on, and their expected results."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.protocol.state_model.world import Setting


class Case(NamedTuple):
    """A setting and its expected result."""

    name: str
    setting: Setting
    stops: frozenset[str] = frozenset()
    """Errors that may end a history after an event from outside. No other error may stay."""
    broken: str = ""
    """The promise that breaks, by a documented limit or by a condition that is switched off."""
    long: bool = False


def _case(name: str, *stops: str, broken: str = "", long: bool = False, **changes: Any) -> Case:
    return Case(name, Setting(**changes), frozenset(stops), broken, long)


LAGGING, OTHER, NONE = "LedgerBehindLog", "Diverged", "MissingManifest"
TARGET: dict[str, Any] = {"restores": ("target",), "ticks": 1}
PAUSED: dict[str, Any] = {
    **TARGET,
    "runs": 1,
    "stopped": False,
    "kind": "tx",
    "flushers": 2,
    "epochs": 1,
}
LISTS: dict[str, Any] = {"targets": 2, "lists": ((0, 1), (0,), (0, 1)), "runs": 3}
ONE_GIVEN_UP: dict[str, Any] = {
    "targets": 2,
    "lists": ((0, 1), (1,)),
    "acts": ("give up target",),
    "epochs": 1,
}
BOTH: dict[str, Any] = {"restores": ("checkpoint+log",), "kind": "tx"}
COPY: dict[str, Any] = {
    "places": (0, 1),
    "flushers": 2,
    "epochs": 1,
    "kind": "tx",
    "acts": ("adopt",),
}

SETTINGS = [
    _case("one driver at a time, 2 runs, 2 epochs"),
    _case("3 runs, 2 epochs", runs=3, long=True),
    _case("2 runs, 3 epochs", epochs=3, long=True),
    _case("2 flushers, retention, 1 epoch", flushers=2, ticks=1, epochs=1),
    _case("2 flushers, retention, 2 epochs", flushers=2, ticks=1, long=True),
    _case("lost answers, kept ledger rows", lost=True, cached=True),
    _case(
        "lost answers, kept ledger rows, 2 flushers", lost=True, cached=True, flushers=2, long=True
    ),
    _case("windows of 2 epochs", window=2),
    _case("windows of 2 epochs, 2 flushers", window=2, flushers=2, runs=1),
    _case(
        "windows of 2 and 3 epochs, transactions",
        window=3,
        epochs=3,
        kind="tx",
        runs=1,
        flushers=2,
        long=True,
    ),
    _case("transactions, 2 flushers, 1 epoch", kind="tx", flushers=2, epochs=1),
    _case("lists, 2 flushers, 1 epoch", kind="lists", flushers=2, epochs=1),
    _case("lists, 2 epochs", kind="lists", runs=1),
    _case("2 targets, 1 epoch", targets=2, epochs=1),
    _case("2 targets, 2 epochs", targets=2, long=True),
    _case("refused rows, 2 flushers, 1 epoch", refuse=True, flushers=2, epochs=1),
    _case("budget of 1 epoch", budget=1),
    _case("purged checkpoint, 3 epochs", purge=True, epochs=3, runs=1),
    _case("power loss", power=1),
    _case("2 power losses, 3 runs", power=2, runs=3, long=True),
    _case("two live drivers", single=False),
    _case("two live drivers, 2 flushers, 1 epoch", single=False, flushers=2, epochs=1, long=True),
    _case("three live drivers, 1 epoch", single=False, runs=3, epochs=1, long=True),
    _case(
        "errors that a function keeps to itself",
        f"target 0: {NONE}",
        f"target 0: {NONE}, run: {NONE}",
        swallow=True,
    ),
    _case("targets change at an open", "run: OptionError", **LISTS, epochs=1),
    _case("targets change at an open, 2 epochs", "run: OptionError", **LISTS, long=True),
    _case("target restored, flushers stopped", f"target 0: {LAGGING}", **TARGET, runs=1),
    _case(
        "one of two targets restored", f"target 0: {LAGGING}", **TARGET, runs=1, targets=2, epochs=1
    ),
    _case("target restored, paused flushers, transactions", f"target 0: {LAGGING}", **PAUSED),
    _case(
        "checkpoint set back, paused flusher, 1 epoch",
        f"run: {OTHER}",
        restores=("checkpoint",),
        stopped=False,
        epochs=1,
    ),
    _case(
        "checkpoint set back, paused flusher",
        f"run: {OTHER}",
        restores=("checkpoint",),
        stopped=False,
        long=True,
    ),
    _case(
        "checkpoint set back, 2 paused flushers, 1 epoch",
        f"run: {OTHER}",
        restores=("checkpoint",),
        stopped=False,
        flushers=2,
        epochs=1,
        long=True,
    ),
    _case(
        "checkpoint and log restored, transactions, 1 epoch", f"target 0: {OTHER}", **BOTH, epochs=1
    ),
    _case("checkpoint and log restored, transactions", f"target 0: {OTHER}", **BOTH, long=True),
    _case("all three restored", restores=("checkpoint+log+target",), epochs=1, ticks=1),
    _case("an epoch is given up", acts=("give up",)),
    _case(
        "a missing epoch is given up",
        f"target 0: {NONE}",
        f"target 0: {NONE}, run: {NONE}",
        swallow=True,
        acts=("give up missing",),
    ),
    _case("a target is given up", acts=("give up target",), targets=2, epochs=1),
    _case("a target is given up, then named alone", "run: OptionError", **ONE_GIVEN_UP),
    _case("set-mark", f"target 0: {LAGGING}", acts=("set-mark",), runs=1, ticks=1),
    _case("adopt", "target 0: WrongOwner", acts=("adopt",), epochs=1),
    _case(
        "delete the log, adopt",
        "target 0: WrongOwner",
        f"target 0: {LAGGING}",
        acts=("delete log", "adopt"),
        ops=2,
        long=True,
    ),
    _case(
        "a copy that adopts, both go on, transactions",
        "target 0: WrongOwner",
        f"target 0: {OTHER}",
        **COPY,
        trim=False,
        long=True,
    ),
    _case("a copy that does not adopt", **{**COPY, "acts": (), "kind": "cells"}),
    _case(
        "a copy of checkpoint, then log, restored",
        f"run: {OTHER}",
        f"target 0: {OTHER}",
        **BOTH,
        slow="checkpoint",
        epochs=1,
    ),
    _case("a worker of commit() outlives its driver", zombie=True),
    # Documented limits: docs/protocol/model.md has each.
    _case(
        "limit: a copy of log, then checkpoint, restored",
        broken="P2: 0 is of run 0, which did not complete it",
        **BOTH,
        slow="log",
        epochs=1,
    ),
    _case(
        "limit: log restored alone",
        broken="P2: 0 is of run 0, which did not complete it",
        restores=("log",),
        kind="tx",
    ),
    _case(
        "limit: checkpoint and log restored, half a window of cells",
        broken="P2: target 0 has rows of 0 of runs",
        restores=("checkpoint+log",),
        epochs=1,
    ),
    _case(
        "limit: a copy adopts, half a window of cells",
        broken="P2: target 0 has rows of 0 of runs",
        **{**COPY, "kind": "cells", "flushers": 1},
    ),
    _case(
        "limit: target of cells restored, flusher not stopped",
        broken="P3: target 0 has cells",
        **TARGET,
        runs=1,
        stopped=False,
    ),
    _case(
        "limit: a refused row is taken later",
        broken="P2: cell 1 of 0 is in the table and in refused/",
        refuse=True,
        accept=True,
        flushers=2,
        epochs=1,
    ),
]
"""Settings with all conditions on."""
