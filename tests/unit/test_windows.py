"""Which epochs share a window: decided from the choices about each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wal_sink.errors import CorruptLog, WalSinkError
from wal_sink.model.manifest import Attempt, attempts_at
from wal_sink.protocol.next_step import Begin, Choose, Idle, ManifestMissing, PassOver
from wal_sink.protocol.windows import (
    WINDOW_BYTES,
    WINDOW_EPOCHS,
    Choice,
    fits,
    following,
    merged,
    to_sync,
)


def taken(epoch: int, *, proven: bool = True) -> Begin:
    return Begin((Attempt(epoch, 1),), proven)


def choices(*made: Choice | WalSinkError) -> Iterator[Choice]:
    for choice in made:
        if isinstance(choice, WalSinkError):
            raise choice
        yield choice


BROKEN = CorruptLog("a manifest is torn", "restore it")


def test_final_choices_share_a_window() -> None:
    """One attempt for each epoch, in their order."""
    assert merged(choices(taken(5), taken(6), taken(7))) == Begin(
        (Attempt(5, 1), Attempt(6, 1), Attempt(7, 1))
    )


@pytest.mark.parametrize(
    "ends",
    [taken(6, proven=False), PassOver(6, 0, "digest"), ManifestMissing(6), Idle("waiting"), BROKEN],
    ids=["unproven", "passed over", "missing", "waiting", "damaged"],
)
def test_whatever_else_ends_the_window(ends: Choice | WalSinkError) -> None:
    """It is left for the next one, with all that follows."""
    assert merged(choices(taken(5), ends, taken(7))) == taken(5)


@pytest.mark.parametrize(
    "alone", [taken(5, proven=False), PassOver(5, 0, "digest"), ManifestMissing(5), Idle("waiting")]
)
def test_first_in_line_it_stands_alone(alone: Choice) -> None:
    """What follows it is not even looked at."""
    assert merged(choices(alone, BROKEN)) == alone


def test_first_in_line_an_error_is_raised() -> None:
    """The flush stops there."""
    with pytest.raises(CorruptLog):
        merged(choices(BROKEN, taken(6)))


def test_only_what_is_checkpointed_is_asked_for() -> None:
    """At most so many epochs, from the first on."""
    attempts = (Attempt(5, 1),)
    assert [each.epoch for each in following(Choose(5, attempts), 7)] == [5, 6, 7]
    many = list(following(Choose(5, attempts), 10_000))
    assert len(many) == WINDOW_EPOCHS
    assert {each.attempts for each in many} == {attempts}


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
