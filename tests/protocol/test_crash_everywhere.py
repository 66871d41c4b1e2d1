"""Faults at every operation of a run and of a flusher, upon each kind of target."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from tests.protocol.adding_world import AddingWorld
from tests.protocol.cases import covered
from tests.protocol.engine import flush
from tests.protocol.every_fault import (
    EPOCHS,
    TARGET,
    When,
    every_fault,
    hit_by,
    new_world,
)
from tests.protocol.staging_world import StagingWorld

__all__ = ["flush"]  # scripts that try to break the protocol have it from here


@pytest.mark.parametrize("when", get_args(When))
@pytest.mark.parametrize("role", ["run", "flusher", "flusher of a backlog"])
def test_every_fault_is_recovered_from(role: str, when: When) -> None:
    """No row lost, none doubled, none of an attempt that Spark did not keep, and nothing left behind."""
    hit = every_fault(new_world, role, when)
    seams = {"target": hit_by(hit, *TARGET), "store": len(hit) - hit_by(hit, *TARGET)}
    assert seams["store"] > 60, "the script is too short to mean something"
    assert seams["target"] > {"run": 0, "flusher": 20, "flusher of a backlog": 10}[role]
    covered(f"fault at every operation of a {role}, {when}", f"{len(hit)} {seams}")


@pytest.mark.parametrize("when", get_args(When))
@pytest.mark.parametrize("kind", [AddingWorld, StagingWorld])
def test_every_fault_upon_transactions_is_recovered_from(
    kind: type[AddingWorld], when: When, tmp_path: Path
) -> None:
    """The same over targets that add rows: there is no key by which a doubled row could hide."""
    hit = every_fault(lambda: kind(tmp_path), "flusher", when)
    assert hit_by(hit, "start ") == hit_by(hit, "finish ") == EPOCHS
    covered(f"fault at every operation of a flusher, {kind.__name__}, {when}", f"{len(hit)}")
