"""The records of a window: one object for all its epochs (rule 17)."""

from __future__ import annotations

import pytest

from tests.protocol.aged_log import record_each
from tests.protocol.engine import World
from tests.protocol.operators import edit, query, rewind
from tests.support.records import flushed_epoch
from wal_sink import errors
from wal_sink.admin.inspect import inspect
from wal_sink.admin.verify import verify
from wal_sink.model import paths
from wal_sink.progress.status import read_rate
from wal_sink.protocol import windows
from wal_sink.testing.faults import Crash, Faults
from wal_sink.wal.log import Log

STORES = ("memory", "local")

EPOCHS = 6


def fill(world: World, first: int = 0, last: int = EPOCHS) -> None:
    """Publish epochs, up to before `last`, and flush them as one window."""
    world.run().flushed_batches(*([(f"k{epoch}", epoch)] for epoch in range(first, last)))


def test_rule_17_a_window_costs_one_object_and_has_a_record_of_each_epoch(world: World) -> None:
    """Readers get the same as from windows of one epoch each."""
    fill(world)
    assert len(world.log_backend.list(paths.FLUSHED.folder)) == 1
    together = world.log.flushed_since(-1)
    assert [record.epoch for record in together] == [*range(EPOCHS)]
    assert [world.log.flushed(epoch) for epoch in range(EPOCHS)] == together
    assert world.log.newest_flushed() == together[-1]
    rate, shown = read_rate(world.log), inspect(query(world), None, 3).epochs
    assert [line.epoch for line in shown] == [3, 4, 5]
    record_each(world.log)
    assert len(world.log_backend.list(paths.FLUSHED.folder)) == EPOCHS
    assert world.log.flushed_since(-1) == together
    assert [world.log.flushed(epoch) for epoch in range(EPOCHS)] == together
    assert world.log.newest_flushed() == together[-1]
    assert (read_rate(world.log), inspect(query(world), None, 3).epochs) == (rate, shown)


@pytest.mark.parametrize("when", ["before", "after"])
def test_rule_17_records_of_a_window_count_when_they_are_there(world: World, when: str) -> None:
    """A flusher dies at their object. Until it is there, nothing of the window is deleted."""
    world.run().batches(*([(f"k{epoch}", epoch)] for epoch in range(EPOCHS)))
    creates = f"create {paths.FLUSHED.folder}"
    with pytest.raises(Crash):
        world.flush(Faults(at=0, error=Crash, when=when, matching=creates))  # type: ignore[arg-type]
    complete = when == "after"
    assert world.log.flushed_epochs() == ([*range(EPOCHS)] if complete else [])
    assert world.log.mark() == (EPOCHS - 1 if complete else -1)
    assert len(world.log.attempts()) == EPOCHS
    world.flush()
    assert world.log.flushed_epochs() == [*range(EPOCHS)]
    assert world.table() == world.expected()
    assert world.log.attempts() == ()


@pytest.mark.parametrize("to", [-1, 0, 2, 4])
def test_rule_22_a_rewind_into_a_window_leaves_its_first_records(world: World, to: int) -> None:
    """They are recorded apart from those above, before the mark goes."""
    world.retention_s = 3_600.0
    fill(world)
    before = world.log.flushed_since(-1)
    world.log.delete(paths.RETAINED_RECORD.path(epoch) for epoch in range(EPOCHS))
    rewind(world, to)
    assert all(name.last <= to for name in world.log.keys(paths.FLUSHED))
    assert world.log.flushed_since(-1) == before[: to + 1]
    assert [world.log.flushed(epoch) for epoch in range(to + 1)] == before[: to + 1]
    assert all(world.log.flushed(epoch) is None for epoch in range(to + 1, EPOCHS))
    world.flush()
    after = world.log.flushed_since(-1)
    assert [record.epoch for record in after] == [*range(EPOCHS)]
    assert after[: to + 1] == before[: to + 1]
    assert min(record.base_us for record in after[to + 1 :]) > before[-1].base_us
    assert world.table() == world.expected()


def test_rule_17_what_a_flusher_records_late_after_a_rewind_hides_nothing_newer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood still between `finish` and its records, and the epochs were flushed again in other windows."""
    monkeypatch.setattr(windows, "WINDOW_EPOCHS", 4)
    world.retention_s = 3_600.0
    fill(world)  # windows: 0 to 3, and 4 to 5
    late = [record for record in world.log.flushed_since(-1) if record.epoch in (1, 2, 3)]
    rewind(world, 0)
    monkeypatch.setattr(windows, "WINDOW_EPOCHS", 3)
    world.flush()  # windows: 1 to 3, and 4 to 5
    world.log.delete(world.log_backend.list(paths.RETAINED_RECORD.folder))
    current = world.log.flushed_since(-1)
    world.log.record_flushed(late)
    assert world.log.flushed_since(-1) == current
    assert [world.log.flushed(epoch) for epoch in range(EPOCHS)] == current
    world.log.record_flushed(late[:2])  # as if its window had ended inside
    assert world.log.flushed_since(-1) == current
    assert [world.log.flushed(epoch) for epoch in range(EPOCHS)] == current


def test_rule_17_of_two_records_of_an_epoch_the_one_begun_last_counts(world: World) -> None:
    """Whichever of them was written first."""
    log = Log(world.log_backend)
    log.record_flushed([flushed_epoch(epoch, base_us=100 + epoch) for epoch in range(4)])
    log.record_flushed([flushed_epoch(epoch, base_us=10 + epoch) for epoch in range(1, 3)])
    log.record_flushed([flushed_epoch(epoch, base_us=200 + epoch) for epoch in range(3, 6)])
    found = log.flushed_since(-1)
    assert [record.base_us for record in found] == [100, 101, 102, 203, 204, 205]
    assert [log.flushed(epoch) for epoch in range(6)] == found


def test_a_replay_of_an_epoch_inside_a_window_is_compared_with_its_record(world: World) -> None:
    """The same offsets pass, others diverge (rule 5)."""
    fill(world)
    for epoch in range(2, EPOCHS):
        edit(world.checkpoint, f"commits/{epoch}", None)
    assert world.run().publish([("k2", 2)]) is None
    for epoch in range(2, EPOCHS):
        edit(world.checkpoint, f"offsets/{epoch}", None)
    with pytest.raises(errors.Diverged, match="other source offsets"):
        world.run().publish([("k2", 9)], offset="77")


def test_damaged_records_of_a_window_are_found_and_named(world: World) -> None:
    """`verify` names the object; a renamed one is not taken for records of other epochs."""
    fill(world)
    (window,) = world.log_backend.list(paths.FLUSHED.folder)
    data = world.log_backend.read(window)
    edit(world.log_backend, window, b"{")
    found = verify(query(world), None, world.clock()).findings
    assert ("CorruptLog", world.log.url_of(window)) in [(each.kind, each.file) for each in found]
    edit(world.log_backend, window, None)
    renamed = paths.FLUSHED.path(paths.WindowName(EPOCHS, 1, 7))
    world.log_backend.create(renamed, data)
    with pytest.raises(errors.CorruptLog, match="records of other epochs"):
        world.log.flushed(1)
