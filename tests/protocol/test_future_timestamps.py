"""The way back when write timestamps lie in the future: `wal-sink rewind --reset-timestamps`."""

from __future__ import annotations

import msgspec
import pytest

from tests.protocol.engine import NOW_US, World
from tests.protocol.interleave import Process, Turns
from tests.protocol.operators import query
from wal_sink.admin.rewind import Rewind, Rewound, plan_rewind
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import FlusherAtWork, OptionError
from wal_sink.progress.status import read_status
from wal_sink.testing.faults import FaultyTarget

STORES = ("memory", "local")

YEARS_US = 10 * 365 * 86_400_000_000
SECOND_US = 1_000_000


def glitch(world: World) -> None:
    """Flush three epochs, the second one as of ten years later: all clocks were wrong for a while."""
    run = world.run().flushed_batches([("a", 1)])
    world.clock.us += YEARS_US
    run.flushed_batches([("b", 2)])
    world.clock.us -= YEARS_US
    run.flushed_batches([("c", 3)])


def reset(world: World, to: int) -> Rewound:
    """Run the command."""
    return plan_reset(world, to).carry_out(world.clock())


def plan_reset(world: World, to: int) -> Rewind:
    """Return what the command is about to do."""
    return plan_rewind(query(world), world.target, to, world.clock(), reset_by=world.clock)


def at_us(world: World, key: str) -> int:
    """Return when a row was written, as the table has it."""
    us: int = world.store.table[key,].cells["v"].us
    return us


def test_the_timestamps_come_back_to_the_present(world: World) -> None:
    """What is flushed next is written as of now; what was written as of the future stays so."""
    glitch(world)
    assert at_us(world, "c") > NOW_US + YEARS_US, "rule 14: above all before"
    plan = plan_reset(world, 2)
    assert "stay on top until 2033-" in plan.consequences
    done = plan.carry_out(world.clock())
    assert done.again == 0
    assert int(done.after["last_us"]) < NOW_US + SECOND_US
    world.run().flushed_batches([("d", 4), ("b", 5)])
    assert at_us(world, "d") < NOW_US + SECOND_US
    assert at_us(world, "b") > NOW_US + YEARS_US
    assert world.table() == {"a": 1, "b": 2, "c": 3, "d": 4}, (
        "the new value of b is hidden until 2033"
    )


def test_the_operators_clock_is_bounded_too(world: World) -> None:
    """It may be the very clock that is wrong."""
    glitch(world)
    world.clock.us += YEARS_US
    world.target_ahead_us = -YEARS_US
    reset(world, 2)
    assert world.state.last_us <= NOW_US + 61 * SECOND_US


def test_nothing_is_reset_that_is_not_in_the_future(world: World) -> None:
    """Rows that are a minute apart are nothing that an operator has to mend."""
    world.run().flushed_batches([("a", 1)])
    world.clock.us -= 59 * SECOND_US
    with pytest.raises(OptionError, match="do not lie in the future"):
        reset(world, 0)
    world.clock.us -= 2 * SECOND_US
    reset(world, 0)


def test_a_reset_that_stood_still_takes_no_timestamps_of_the_present_back(world: World) -> None:
    """Another operator has brought them back meanwhile; an hour later the first command reads the row."""

    def resets(faults: Turns) -> None:
        target = FaultyTarget(world.target, faults)
        with pytest.raises(OptionError, match="do not lie in the future"):
            plan_rewind(query(world), target, 3, world.clock(), reset_by=world.clock)

    glitch(world)
    slow = Process(Turns(0, counts=lambda name: name == "read ledger"), resets)
    slow.turn()
    reset(world, 2)
    world.clock.us += 3_600 * SECOND_US
    world.run().flushed_batches([("d", 4)])
    slow.turn()
    assert slow.ended


def test_a_later_rewind_does_not_go_back_to_the_future(world: World) -> None:
    """Records, and the record of the reset, still name those timestamps; what came after them counts."""
    world.retention_s = 10**9
    glitch(world)
    reset(world, 2)
    world.run().flushed_batches([("d", 4)], [("e", 5)])
    newest_us = at_us(world, "e")
    row = world.store.ledger.pop(world.query_id)
    plan_rewind(query(world), world.target, 3, world.clock()).carry_out(world.clock())
    assert world.state.last_us == row.last_us == newest_us
    world.flush()
    assert newest_us < at_us(world, "e") < NOW_US + SECOND_US


def test_rule_22_a_record_that_comes_late_does_not_take_the_timestamps_to_the_future(
    world: World,
) -> None:
    """A flusher stood still between `finish` and the records of its window, over the reset."""
    world.retention_s = 10**9
    world.clock.us += YEARS_US
    world.run().flushed_batches(*([(key, value)] for value, key in enumerate("abc")))
    late = world.log.flushed_since(-1)
    world.clock.us -= YEARS_US
    world.store.table.clear()
    reset(world, -1)
    world.flush()
    newest_us = at_us(world, "c")
    assert newest_us < NOW_US + SECOND_US
    world.log.record_flushed(late)

    for to in (1, -1):
        plan_rewind(query(world), world.target, to, world.clock()).carry_out(world.clock())
        assert world.state.last_us == newest_us, to
        world.flush()
        assert newest_us < at_us(world, "c") < NOW_US + SECOND_US
        newest_us = at_us(world, "c")
    assert world.table() == {"a": 0, "b": 1, "c": 2}


def test_a_reset_that_dies_is_run_again(world: World) -> None:
    """Its record is there and the row is not replaced: timestamps still grow, until it is."""
    glitch(world)
    record = plan_reset(world, 2)
    row = world.state
    moved = msgspec.structs.replace(row, last_us=row.last_us + 1)
    world.store.ledger[world.query_id] = moved
    with pytest.raises(Exception, match="moved meanwhile"):
        record.carry_out(world.clock())
    run = world.run().flushed_batches([("d", 4)])
    assert at_us(world, "d") > NOW_US + YEARS_US
    reset(world, 3)
    run.flushed_batches([("e", 5)])
    assert at_us(world, "e") < NOW_US + SECOND_US


def test_timestamps_that_were_left_behind_count_when_their_time_has_come(world: World) -> None:
    """A flush has used some of them since; then a rewind took its record back, and the row was lost."""
    world.retention_s = 10**9
    run = world.run().flushed_batches([("a", 1)])
    world.clock.us += 1_000 * SECOND_US
    run.flushed_batches([("b", 2)])
    world.clock.us += 1_000 * SECOND_US
    run.flushed_batches([("c", 3)])
    world.clock.us -= 2_000 * SECOND_US
    reset(world, 2)
    world.clock.us += 1_500 * SECOND_US
    run.flushed_batches([("a", 4)])
    used_us = at_us(world, "a")
    for _ in range(2):
        plan_rewind(query(world), world.target, 2, world.clock()).carry_out(world.clock())
        assert world.state.last_us == used_us
        row = world.store.ledger.pop(world.query_id)
    world.store.ledger[world.query_id] = row
    world.flush()
    assert at_us(world, "a") > used_us


def test_a_reset_that_died_leaves_no_timestamp_behind_that_was_used_since(world: World) -> None:
    """The flush goes on as of the future; then the ledger row is lost."""
    glitch(world)
    died = plan_reset(world, 2)
    row = world.store.ledger.pop(world.query_id)
    with pytest.raises(FlusherAtWork):
        died.carry_out(world.clock())
    world.store.ledger[world.query_id] = row
    run = world.run().flushed_batches([("b", 4)])
    newest_us = at_us(world, "b")
    world.store.ledger.pop(world.query_id)
    plan_rewind(query(world), world.target, 3, world.clock()).carry_out(world.clock())
    run.flushed_batches([("b", 5)])
    assert at_us(world, "b") > newest_us > NOW_US + YEARS_US
    assert world.table()["b"] == 5


def test_what_is_flushed_again_is_written_as_of_the_present(world: World) -> None:
    """`--to` an earlier epoch, after the table was truncated: it is filled with rows of the present."""
    world.retention_s = 10**9
    glitch(world)
    world.store.table.clear()
    reset(world, -1)
    assert world.flushed() == {"a": 1, "b": 2, "c": 3}
    assert all(at_us(world, key) < NOW_US + SECOND_US for key in "abc")


def test_status_tells(world: World) -> None:
    """As far as it can without asking the target."""
    run = world.run().flushed_batches([("a", 1)])
    assert read_status(Checkpoint(world.checkpoint), world.log).timestamps_ahead_seconds == 0.0
    world.clock.us += 2 * YEARS_US
    run.flushed_batches([("b", 2)])
    assert read_status(Checkpoint(world.checkpoint), world.log).timestamps_ahead_seconds > 10**8
