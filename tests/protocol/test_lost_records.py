"""Records of `flushed/` that are lost, though newer ones are there: a power loss, or a hand in the log."""

from __future__ import annotations

import pytest

from tests.protocol.aged_log import leave_in_place, record_each
from tests.protocol.engine import World
from tests.protocol.test_corruption import edit
from wal_sink import errors
from wal_sink.admin.query import Query
from wal_sink.admin.rewind import plan_rewind
from wal_sink.admin.verify import verify
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.model import paths
from wal_sink.progress.status import read_status
from wal_sink.protocol.next_step import RecordFlushed
from wal_sink.testing.faults import Crash, Faults


@pytest.mark.parametrize("lost", [(0,), (1,), (1, 2), (0, 1, 2), None])
def test_rule_17_records_that_a_power_loss_took_are_made_from_the_ledger(
    world: World, lost: tuple[int, ...] | None
) -> None:
    """Files of one folder may become durable in any order: the newest of a window, and others not.

    As older code left them, a file for each epoch; and as they are now, one for all but the last.
    """
    run = world.run()
    for epoch in range(4):
        run.batch([(f"k{epoch}", epoch)])
    with pytest.raises(Crash):
        world.flush(Faults(at=0, error=Crash, matching="delete segments"))
    before = {epoch: world.log.flushed(epoch) for epoch in range(4)}
    if lost is None:
        world.log.delete(each.path for each in world.log.recorded() if not each.is_mark)
    else:
        record_each(world.log, lost)
    assert world.log.flushed_epochs() == sorted({0, 1, 2, 3}.difference(lost or (0, 1, 2)))
    run.batch([("next", 5)])
    steps = world.flush()
    assert isinstance(steps[0], RecordFlushed)
    assert world.table() == world.expected()
    assert world.log.attempts() == ()
    for epoch, record in before.items():
        found = world.log.flushed(epoch)
        assert record is not None
        assert found is not None
        assert (found.digest, found.rows, found.base_us) == (
            record.digest,
            record.rows,
            record.base_us,
        )


def test_rule_18_an_epoch_whose_record_is_lost_stays_and_holds_up_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """It is in the table; only what is left of it cannot be compared any more, until the record is back."""
    world.retention_s = 3_600.0
    run = world.run()
    for epoch in range(4):
        run.batch([(f"k{epoch}", epoch)])
        world.flush()  # the ledger's last window is the last epoch alone
    leave_in_place(world)  # else the record has a copy
    backup = world.log_backend.read(paths.flushed(1))
    world.log_backend.delete([paths.flushed(1)])
    world.retention_s = 0.0
    run.batch([("next", 5)])
    world.flush()
    assert world.table() == world.expected()
    assert [attempt.epoch for attempt in world.log.attempts()] == [1]
    assert {epoch for epoch, _ in world.log.segments()} == {1}
    assert "flushed/ has no record of it" in caplog.text
    checkpoint = Checkpoint(world.checkpoint)
    found = verify(Query(world.query_id, checkpoint, world.log), None, world.clock()).findings
    assert [(finding.epoch, finding.kind) for finding in found] == [(1, "Diverged")]
    assert read_status(checkpoint, world.log).flushed == 4
    world.log_backend.create(paths.flushed(1), backup)
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
        run.batch([(f"k{epoch}", epoch)])
        world.flush()
    leave_in_place(world)
    world.log_backend.delete([paths.flushed(1)])
    query = Query(world.query_id, Checkpoint(world.checkpoint), world.log)
    with pytest.raises(errors.OptionError, match=r"(?s)no record of epoch 1.*only to 2"):
        plan_rewind(query, world.target, 1, world.clock())
    plan_rewind(query, world.target, 0, world.clock()).carry_out(world.clock())
    world.flush()
    assert world.table() == world.expected()
    assert world.log.flushed_epochs() == [0, 1, 2, 3]
    leave_in_place(world)
    record_each(world.log, lost=[1])
    for epoch in range(1, 4):
        edit(world.checkpoint, f"commits/{epoch}", None)
    with pytest.raises(errors.Diverged, match="long ago"):
        world.run().publish([("k1", 1)])
