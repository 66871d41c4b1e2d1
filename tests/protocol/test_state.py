"""Transitions of the state that the model does not reach: retention by time and bytes, and refusals."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from wal_sink.errors import (
    OptionError,
    WalSinkError,
)
from wal_sink.model import paths
from wal_sink.model.ledger import LedgerRow
from wal_sink.model.state import EpochManifest, Predecessor, State, Sums
from wal_sink.protocol import state as transitions
from wal_sink.protocol.retention import EARLIER, Retention, trimmable
from wal_sink.protocol.state import Actor, Opening

OPENING = Opening("q", "file:/checkpoint", "run-1", ("cassandra",), {"table": "flights"})
ME = Actor("pid 1 on host", 0)
MUCH = 10**12


def created(committed: int = -1) -> State:
    return transitions.create(OPENING, "log", committed, ME)


def opened(committed: int = -1) -> State:
    new = transitions.open_run(created(committed), OPENING, committed + 1, committed, ME)
    assert new is not None
    return new


def manifest(
    state: State, epoch: int, size: int = 1, digest: str = "d", run: str = "run-1"
) -> EpochManifest:
    predecessor = transitions.predecessor_for(state, run, epoch, "o", epoch - 1)
    assert predecessor is not None
    return EpochManifest(
        epoch=epoch,
        manifest=paths.MANIFEST.path(paths.ManifestName(epoch, run)),
        digest=f"{digest}{epoch}",
        offsets_digest="o",
        first_us=predecessor.last_us + 1,
        last_us=predecessor.last_us + 1,
        sums=Sums(rows=predecessor.sums.rows + 1, bytes=predecessor.sums.bytes + size),
        predecessor=predecessor,
    )


def published(state: State, made: EpochManifest) -> State:
    new = transitions.publish(state, "run-1", made, made.epoch - 1, MUCH, ME)
    assert new is not None
    return new


def test_run_with_all_targets_given_up_does_not_open() -> None:
    state = transitions.give_up_target(opened(), "cassandra", ME)
    assert state is not None
    following = OPENING._replace(run_id="run-2", after="run-1")
    with pytest.raises(OptionError, match="Every target of the query was given up"):
        transitions.open_run(state, following, 0, -1, ME)


@pytest.mark.parametrize(
    "wrong",
    [{"first_us": 0}, {"last_us": 0}, {"sums": Sums()}, {"predecessor": Predecessor(digest="x")}],
)
def test_publish_refuses_manifest_that_does_not_continue_the_chain(
    wrong: dict[str, object],
) -> None:
    state = opened()
    state = published(state, manifest(state, 0))
    state = transitions.settle(state, 0, ME) or state
    with pytest.raises(WalSinkError, match="does not continue"):
        published(state, replace(manifest(state, 1), **wrong))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "retention", [Retention(1000, MUCH), Retention(MUCH, 1000), Retention(1000, 1000)]
)
def test_trim_keeps_what_retention_asks_and_little_more(seed: int, retention: Retention) -> None:
    """Given epochs at random times, an earlier mark is near, and there are few earlier marks."""
    rng = random.Random(seed)
    state, now, flushed = opened(), 0, {-1: (0, 0)}
    for epoch in range(400):
        now += rng.choice((1, 5, 40, 200))
        made = manifest(state, epoch, rng.choice((1, 5, 40, 200)))
        state = published(state, made)
        actor = Actor("flusher", now)
        row = LedgerRow("q", "log", epoch, made.digest)
        state = transitions.mark(state, "cassandra", row, {epoch: made}, retention, actor)
        flushed[epoch] = (now, made.sums.bytes)
        assert len(state.targets[0].mark.earlier) <= EARLIER
        assert state.trimmed == trimmable(state, retention, now)
        if state.trimmed >= 0:
            at, size = flushed[state.trimmed]
            assert now - at >= retention.us or made.sums.bytes - size >= retention.bytes
        at, size = flushed[min(state.trimmed + 1, epoch)]
        share = (now - at) / retention.us + (made.sums.bytes - size) / retention.bytes
        assert share <= 2 + 2 / 15 + 0.5


def test_marks_with_a_future_time_are_forgotten() -> None:
    """A clock that was years ahead delays only one trim."""
    state, retention = opened(), Retention(1000, MUCH)
    for epoch, now in enumerate([10**9, 1, 2, *range(100, 5000, 100)]):
        made = manifest(state, epoch)
        state = published(state, made)
        row = LedgerRow("q", "log", epoch, made.digest)
        state = transitions.mark(
            state, "cassandra", row, {epoch: made}, retention, Actor("flusher", now)
        )
    assert state.trimmed > 30
