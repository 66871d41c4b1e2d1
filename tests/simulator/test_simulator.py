"""Random histories keep every guarantee; the simulator finds deliberate bugs, and replays a seed exactly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.__main__ import caught_by, copied
from tests.mutants.catalogue import BUGS
from tests.protocol.cases import covered
from tests.support.programs import ran

SEED = int(os.environ.get("WAL_SINK_SEED") or 1)
FEW, ALL = 150, 300
"""The number of histories in `make check`, and in `make test`."""


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the simulator in its own process, since it replaces modules of the product."""
    return ran([sys.executable, "-m", "tests.simulator", *arguments])


def play(seed: int, histories: int) -> None:
    """Play histories in one process; fail if one fails."""
    ended = simulate("--seed", str(seed), "--histories", str(histories), "--processes", "1")
    figures = ended.stdout.strip().splitlines()
    covered(f"simulated histories from seed {seed} on", " ".join(figures[-1:]))
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_random_histories_keep_every_guarantee() -> None:
    play(SEED, FEW)


@pytest.mark.long
def test_further_random_histories_keep_every_guarantee() -> None:
    """The histories after those of `make check`."""
    play(SEED + FEW, ALL - FEW)


def test_seed_replays_one_history_to_the_byte() -> None:
    """Two processes print the same trace."""
    first, second = (simulate("--seed", str(SEED)) for _ in range(2))
    assert first.stdout == second.stdout
    assert "=== the end" in first.stdout


@pytest.mark.long
def test_deliberate_bugs_of_the_protocol_are_found(tmp_path: Path) -> None:
    tree, test = copied(tmp_path), test_random_histories_keep_every_guarantee.__name__
    bugs = [bug for bug in BUGS if bug.tests == (test,)]
    assert len(bugs) > 10
    assert [bug.name for bug in bugs if caught_by(tree, bug) is None] == []
