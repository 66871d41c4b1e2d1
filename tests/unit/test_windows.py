"""How large a window may be, and what of it is synced: pure functions of epochs and bytes."""

from __future__ import annotations

import pytest

from wal_sink.model.manifest import Attempt, attempts_at
from wal_sink.protocol.windows import (
    WINDOW_BYTES,
    fits,
    to_sync,
)


def test_an_epoch_fits_alone_whatever_its_size() -> None:
    """Others only below the bound."""
    assert fits(0, 10 * WINDOW_BYTES)
    assert fits(1, WINDOW_BYTES - 1)
    assert not fits(1, WINDOW_BYTES)


@pytest.mark.parametrize(
    ("window", "checkpointed", "synced"),
    [
        ((5, 5), 5, {5}),
        ((5, 6), 6, {5, 6}),
        ((5, 9), 9, {8, 9}),
        ((5, 9), 10, {8, 9, 10}),
        ((5, 9), 40, {8, 9, 39, 40}),
    ],
)
def test_rule_8_of_a_window_only_what_the_next_start_reads_is_synced(
    window: tuple[int, int], checkpointed: int, synced: set[int]
) -> None:
    """The newest epochs, from which Spark goes on, and the last ones that the next window looks back to."""
    assert to_sync(*window, checkpointed) == synced


def test_attempts_at_one_epoch_are_found_among_those_at_others() -> None:
    """All of them and no other, wherever they stand."""
    attempts = tuple(Attempt(*each) for each in [(3, 1), (5, 1), (5, 4), (6, 1), (6, 4), (9, 4)])
    for epoch in range(2, 11):
        assert attempts_at(attempts, epoch) == tuple(
            each for each in attempts if each.epoch == epoch
        )
