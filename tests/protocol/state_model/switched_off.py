"""The setting in which a promise breaks if one condition is switched off, for each condition."""

from __future__ import annotations

from typing import Any

from tests.protocol.state_model.settings import (
    BOTH,
    COPY,
    LISTS,
    ONE_GIVEN_UP,
    PAUSED,
    TARGET,
    Case,
)
from tests.protocol.state_model.world import Setting


def _off(name: str, broken: str, long: bool = False, **changes: Any) -> Case:
    """Return a case in which one condition is off, and the promise that breaks."""
    return Case(name, Setting(**changes, off=(name,)), broken=broken, long=long)


SWITCHED_OFF = [
    _off("identity", "P2", **{**COPY, "acts": (), "kind": "cells"}, long=True),
    _off("state", "P", flushers=2),
    _off("fence", "P3: an error without a cause", single=False),
    _off("planned", "P2", zombie=True, epochs=1),
    _off("reopen", "P", single=False),
    _off("sync_segments", "P3", power=1),
    _off("unsettled", "P", single=False),
    _off("offsets", "P4", restores=("checkpoint",)),
    _off("sync_offsets", "P", power=1),
    _off("sync_commits", "P", power=1),
    _off("budget_completed", "P5: the run waits", budget=1),
    _off("settle", "P2", single=False, flushers=2, epochs=1, long=True),
    _off("state_first", "P", epochs=1, restores=("checkpoint",), stopped=False, trim=False),
    _off(
        "exact_settle",
        "P1",
        epochs=1,
        restores=("checkpoint",),
        stopped=False,
        trim=False,
    ),
    _off("missing", "P3", swallow=True),
    _off("whole", "P3"),
    _off("same_time", "P2: the shared key", flushers=2, runs=1, trim=False),
    _off("sending", "P2", kind="lists", epochs=1),
    _off("compare", "P2", flushers=2, kind="tx", epochs=1),
    _off("kept", "P3: an error without a cause", lost=True, cached=True, flushers=2, epochs=1),
    _off("ahead", "P", **BOTH, epochs=1),
    _off("chain", "P", **BOTH, epochs=1),
    _off("mark_settles", "P", **BOTH, epochs=1),
    _off("trimmed", "stop: MissingManifest", **TARGET, runs=1, long=True),
    _off("says_first", "stop: MissingManifest", **PAUSED),
    _off("all_marks", "P", targets=2, epochs=1),
    _off("marked", "P"),
    _off("opened_before", "P", single=False),
    _off("given_up_stay", "P", acts=("give up",)),
    _off("stop", "P3", swallow=True),
    _off("confirm", "P3: an error without a cause", flushers=2),
    _off("drained", "P", **LISTS),
    _off("live", "P3: a run opens", **ONE_GIVEN_UP),
    _off("lift", "P", **LISTS, long=True),
    _off("lift_log", "P", acts=("delete log", "adopt"), ops=2, trim=False),
    _off("entry_first", "P3", refuse=True),
    _off("pass_over", "P2", refuse=True, accept=True, epochs=1),
    _off(
        "adopted_digest",
        "stop: Diverged",
        acts=("delete log", "adopt"),
        ops=2,
        trim=False,
        long=True,
    ),
]
