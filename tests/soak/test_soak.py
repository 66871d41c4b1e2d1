"""Six real deaths of a stateful query; `make soak` has fifty."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.soak.course import Soak, Victim


@pytest.mark.slow_first
@pytest.mark.spark
@pytest.mark.cassandra
@pytest.mark.timeout(1200)
def test_six_deaths(tmp_path: Path) -> None:
    """No window is missing, doubled or mixed, whichever process died."""
    seed = secrets.randbelow(1_000_000)
    victims: list[Victim] = ["worker", "driver", "cassandra", "driver", "worker", "driver"]
    outcome = Soak(tmp_path, seed).run(victims)
    assert outcome.verdict.expected > 0
    assert (outcome.verdict.missing, outcome.verdict.extra, outcome.mixed) == (0, 0, []), (
        f"seed {seed}: {outcome}"
    )
    assert outcome.starts >= 1 + 3 + 1, "each death of a driver, and the last run"
