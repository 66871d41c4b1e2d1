"""Random histories of the real code; and that the simulator can fail, and repeats itself."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.protocol.cases import covered

SEED = int(os.environ.get("WAL_SINK_SEED") or 1)
FEW, ALL = 150, 300
"""Histories, each with the next seed: those of `make check`, and together with the others."""


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Play in processes of their own, since the simulated machine takes the place of the real one."""
    return subprocess.run(
        [sys.executable, "-m", "tests.simulator", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def play(seed: int, histories: int) -> None:
    """Play histories in one process; print what failed."""
    done = simulate("--seed", str(seed), "--histories", str(histories), "--processes", "1")
    figures = done.stdout.strip().splitlines()
    covered(f"simulated histories from seed {seed} on", " ".join(figures[-1:]))
    assert done.returncode == 0, done.stdout + done.stderr


def test_random_histories_keep_every_guarantee() -> None:
    """Whatever happens, in whatever order: for `make check`."""
    play(SEED, FEW)


@pytest.mark.long
def test_further_random_histories_keep_every_guarantee() -> None:
    """Those after the few, the same each time; `make simulate` plays for longer, and others."""
    play(SEED + FEW, ALL - FEW)


def test_seed_replays_one_history_to_the_byte() -> None:
    """Its trace is the same in another process."""
    first, second = (simulate("--seed", str(SEED)) for _ in range(2))
    assert first.stdout == second.stdout
    assert "=== the end" in first.stdout


def test_deliberate_bugs_of_the_protocol_are_found() -> None:
    """Bugs that break a promise each, with the checker's first sentence about them."""
    done = simulate("--without", "test_simulator", "--seed", str(SEED), "--histories", "150")
    assert done.returncode == 0, done.stdout + done.stderr
