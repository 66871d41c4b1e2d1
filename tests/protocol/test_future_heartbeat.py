"""A host whose clock was years ahead reported to flush, and died: nothing waits for it for ever."""

from __future__ import annotations

import pytest

from tests.protocol.damaged import elsewhere, fill, give_up, tear_manifest, upto
from tests.protocol.engine import NOW_US, World
from tests.protocol.looks import Looks
from tests.protocol.operators import query
from tests.protocol.publishing import Driver
from wal_sink.admin.rewind import plan_rewind
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import FlusherAtWork, NoFlusher
from wal_sink.model.records import ErrorReport, FlusherReport
from wal_sink.progress.heartbeat import SILENT_S
from wal_sink.progress.status import read_status

STORES = ("memory", "local")

YEARS_US = 10 * 365 * 86_400_000_000
REFUSED = ErrorReport(
    kind="TargetRefused", what="no table", remedy="", at_us=NOW_US + YEARS_US, transient=False
)


def report(
    world: World, ahead_us: int = YEARS_US, beat: int = 0, error: ErrorReport | None = None
) -> None:
    """Leave what the flusher of another host wrote."""
    world.log.report(
        FlusherReport(
            flusher="elsewhere:1",
            doing="resting",
            heartbeat_us=world.clock() + ahead_us,
            beat=beat,
            error=error,
        )
    )


@pytest.mark.parametrize("error", [None, REFUSED])
def test_an_epoch_does_not_wait_for_it(world: World, error: ErrorReport | None) -> None:
    """Nor is its last error raised for years, by every commit."""
    driver = Driver(world.run())
    driver.batch([("a", 1)])
    report(world, error=error)
    with pytest.raises(NoFlusher):
        driver.publish([("b", 2)])
    assert driver.now_s < 200


@pytest.mark.parametrize("ahead_us", [YEARS_US, -YEARS_US, 0])
def test_a_command_looks_for_half_a_minute(world: World, ahead_us: int) -> None:
    """And says so; then it goes on. A flusher that reports meanwhile is at work, whatever time it tells."""
    fill(world)
    tear_manifest(world)
    report(world, ahead_us)
    alive = Looks(lambda: report(world, ahead_us, beat=alive.number // 10))
    for command in (
        lambda: plan_rewind(alive.by(query(world)), world.target, 0, NOW_US),
        lambda: give_up(world, patience=alive.patience),
    ):
        with pytest.raises(FlusherAtWork, match="elsewhere:1"):
            command()
    assert elsewhere(world).list() == []
    dead = Looks()
    give_up(world, patience=dead.patience)
    assert dead.now_s == SILENT_S + 1, "the last look says what was read after the one before"
    (said,) = dead.said
    assert "Looking for up to 30 s" in said
    world.flush()
    assert set(upto(world, 3)) - set(world.table())


def test_a_rewind_goes_on_when_nothing_changes(world: World) -> None:
    """The file says that a flusher lives until ten years from now."""
    fill(world)
    world.flush()
    world.retention_s = 10**6
    report(world)
    looks = Looks()
    row = world.store.ledger.pop(world.query_id)
    plan = plan_rewind(looks.by(query(world)), world.target, row.flushed, NOW_US)
    plan.carry_out(NOW_US)
    assert looks.now_s == SILENT_S + 1
    assert world.state.flushed == row.flushed


def test_status_says_what_it_knows(world: World) -> None:
    """It is quick: it does not look twice."""
    fill(world)
    report(world)
    seen = read_status(Checkpoint(world.checkpoint), world.log)
    assert not seen.flusher_alive
    assert seen.heartbeat_seconds is not None
    assert seen.heartbeat_seconds < 0
