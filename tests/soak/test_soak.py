"""Three deaths of a stateful query, `make soak` has fifty; and the order of the hostile soak's events."""

from __future__ import annotations

import itertools
import random
import secrets
from collections import Counter
from pathlib import Path

import pytest

from tests.soak.course import Soak, Victim
from tests.soak.hostile import deal


@pytest.mark.slow_first
@pytest.mark.spark
@pytest.mark.cassandra
@pytest.mark.timeout(1200)
def test_three_deaths(tmp_path: Path) -> None:
    """Each kind of process dies: no window is missing, doubled or mixed."""
    seed = secrets.randbelow(1_000_000)
    victims: list[Victim] = ["worker", "driver", "cassandra"]
    outcome = Soak(tmp_path, seed).run(victims)
    assert outcome.verdict.expected > 0
    assert (outcome.verdict.missing, outcome.verdict.extra, outcome.mixed) == (0, 0, []), (
        f"seed {seed}: {outcome}"
    )
    assert outcome.starts >= 1 + 1 + 1, "each death of a driver, and the last run"


@pytest.mark.parametrize("seed", range(5))
def test_each_kind_of_event_comes_before_one_comes_twice(seed: int) -> None:
    """Then as often as its weight says; the same seed gives the same order."""
    weights = {"clock": 3, "full disk": 2, "zombie": 1}
    dealt = list(itertools.islice(deal(random.Random(seed), weights), 3 + 6 + 6))
    assert sorted(dealt[:3]) == sorted(weights)
    assert Counter(dealt[3:9]) == Counter(dealt[9:]) == weights
    assert dealt == list(itertools.islice(deal(random.Random(seed), weights), 15))
