"""Faults at every operation of a run and of a flusher.

The contract suites inject faults for each commit protocol of a target.
"""

from __future__ import annotations

from typing import get_args

import pytest

from tests.kills.every_fault import (
    TARGET,
    When,
    every_fault,
    hit_by,
    new_world,
)
from tests.protocol.cases import covered
from tests.protocol.engine import flush

__all__ = ["flush"]  # scripts that try to break the protocol import it from here


@pytest.mark.parametrize("when", get_args(When))
@pytest.mark.parametrize("role", ["run", "flusher", "flusher of a backlog"])
def test_run_and_flusher_recover_from_every_fault(role: str, when: When) -> None:
    """No row is lost or doubled, no row is of an attempt that Spark did not keep, and no object is left."""
    hit = every_fault(new_world, role, when)
    seams = {"target": hit_by(hit, *TARGET), "store": len(hit) - hit_by(hit, *TARGET)}
    assert seams["store"] >= 25, "the script is too short to mean something"
    assert seams["target"] > {"run": 0, "flusher": 15, "flusher of a backlog": 6}[role]
    covered(f"fault at every operation of a {role}, {when}", f"{len(hit)} {seams}")
