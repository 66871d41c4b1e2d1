"""Records of `flushed/` that are lost, though newer ones are there: a power loss, or a hand in the log."""

from __future__ import annotations

import pytest

from tests.protocol.aged_log import leave_in_place, record_each, recorded_in
from tests.protocol.engine import World
from tests.protocol.operators import edit, query
from wal_sink import errors
from wal_sink.admin.rewind import plan_rewind
from wal_sink.admin.verify import verify
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.progress.status import read_status
from wal_sink.protocol.next_step import RecordFlushed
from wal_sink.testing.faults import Crash, Faults
from wal_sink.wal.retention import Retention
from wal_sink.wal.trim import list_trimmable


def test_rule_17_records_that_a_power_loss_took_are_made_from_the_ledger(world: World) -> None:
    """The records of a window are one file: it is there, or none of them is."""
    run = world.run().batches(*([(f"k{epoch}", epoch)] for epoch in range(4)))
    with pytest.raises(Crash):
        world.flush(Faults(at=0, error=Crash, matching="delete segments"))
    before = world.log.flushed_since(-1)
    assert [record.epoch for record in before] == [0, 1, 2, 3]
    world.log.delete(recorded_in(world.log, 0))
    assert world.log.flushed_epochs() == []
    run.batch([("next", 5)])
    steps = world.flush()
    assert isinstance(steps[0], RecordFlushed)
    assert world.table() == world.expected()
    assert world.log.attempts() == ()
    found = [world.log.flushed(epoch) for epoch in range(4)]
    assert [(r.digest, r.rows, r.base_us) for r in found if r is not None] == [
        (record.digest, record.rows, record.base_us) for record in before
    ]


def test_rule_18_an_epoch_whose_record_is_lost_stays_and_holds_up_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """It is in the table; only what is left of it cannot be compared any more, until the record is back."""
    world.retention_s = 3_600.0
    run = world.run()
    for epoch in range(4):
        run.flushed_batches([(f"k{epoch}", epoch)])
    leave_in_place(world)  # else the record has a copy
    (path,) = recorded_in(world.log, 1)
    backup = world.log_backend.read(path)
    world.log.delete(recorded_in(world.log, 1))
    world.retention_s = 0.0
    run.batch([("next", 5)])
    assert world.flushed() == world.expected()
    assert [attempt.epoch for attempt in world.log.attempts()] == [1]
    assert {epoch for epoch, _ in world.log.segments()} == {1}
    assert "flushed/ has no record of it" in caplog.text
    checkpoint = Checkpoint(world.checkpoint)
    found = verify(query(world), None, world.clock()).findings
    assert [(finding.epoch, finding.kind) for finding in found] == [(1, "Diverged")]
    trimmable = list_trimmable(world.log, Retention(0.0, world.clock))
    assert not [path for path in trimmable if "0000000001" in path], "nor does `flush` say so"
    assert read_status(checkpoint, world.log).flushed == 4
    world.log_backend.create(path, backup)
    world.flush()
    assert world.log.attempts() == ()
    assert world.log.segments() == []


def test_rule_18_a_rewind_goes_back_over_an_epoch_whose_record_is_lost(world: World) -> None:
    """The only attempt that is left of it is the one that was flushed; it is flushed again as it was.

    The epoch cannot become the mark, which is a record. A replay of it is refused: nothing tells its offsets.
    """
    world.retention_s = 3_600.0
    run = world.run()
    for epoch in range(4):
        run.flushed_batches([(f"k{epoch}", epoch)])
    leave_in_place(world)
    world.log.delete(recorded_in(world.log, 1))
    with pytest.raises(errors.OptionError, match=r"(?s)no record of epoch 1.*only to 2"):
        plan_rewind(query(world), world.target, 1, world.clock())
    plan_rewind(query(world), world.target, 0, world.clock()).carry_out(world.clock())
    assert world.flushed() == world.expected()
    assert world.log.flushed_epochs() == [0, 1, 2, 3]
    leave_in_place(world)
    record_each(world.log, lost=[1])
    for epoch in range(1, 4):
        edit(world.checkpoint, f"commits/{epoch}", None)
    with pytest.raises(errors.Diverged, match="long ago"):
        world.run().publish([("k1", 1)])
