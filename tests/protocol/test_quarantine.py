"""Rows that are refused and passed over, `onInvalidRow=quarantine`: none is lost, none is listed twice."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

import pyarrow as pa
import pytest

from state_backends import open_backend
from tests.protocol.adding_world import AddingWorld
from tests.protocol.cases import covered
from tests.protocol.engine import NOW_US, Rows, Run, World
from tests.protocol.every_fault import EPOCHS, When, every_fault, partitions
from tests.protocol.interleave import Process, Turns
from tests.protocol.operations import At
from tests.protocol.operators import faulty, rewind
from tests.protocol.quarantining import (
    REFUSED,
    QuarantiningWorld,
    RefusingWorld,
    listed,
    query_of,
    refused_later,
)
from tests.protocol.several_world import ADDED, CELLS, SeveralWorld
from wal_sink import errors
from wal_sink.admin.flush import FlushCommand
from wal_sink.admin.flusher_at_work import Patience
from wal_sink.admin.quarantine import (
    Retried,
    list_quarantine,
    plan_retry,
)
from wal_sink.admin.query import Query
from wal_sink.admin.rewind import plan_rewind
from wal_sink.admin.skip import plan_skip
from wal_sink.admin.verify import verify
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.model.manifest import Attempt
from wal_sink.model.plan import Plan
from wal_sink.progress.status import read_status
from wal_sink.testing.faults import Crash, Faults, FaultyBackend, FaultyTarget
from wal_sink.testing.memory_target import MemoryTarget
from wal_sink.wal.log import Log
from wal_sink.wal.quarantine import entries


class BadTextWorld(AddingWorld):
    """Adds rows to a table of SQLite; some keys are not UTF-8, as Spark's strings may be."""

    def frame(self, rows: Rows) -> pa.RecordBatch:
        """Return rows as Spark hands them over, which has not looked at their bytes."""
        encoded = [b"\xff" if k == REFUSED else k.encode() for k, _ in rows]
        values = pa.array([v for _, v in rows], pa.int64())
        arrays = [pa.array(encoded, pa.binary()).view(pa.string()), values]
        return pa.record_batch(arrays, names=["k", "v"])


def test_rule_24_a_text_that_is_not_utf8_is_refused_for_every_target(tmp_path: Path) -> None:
    """In the task, whatever the target's own check looks at; in the flush its rows would wait for ever."""
    world = BadTextWorld(tmp_path)
    with pytest.raises(errors.InvalidRow, match=r"Column k .*is not UTF-8, in the row with .*v=2"):
        world.run().batch([("a", 1), (REFUSED, 2)])
    world.on_invalid_row = "quarantine"
    world.run().flushed_batches([("a", 1), (REFUSED, 2), ("b", 3), (REFUSED, 4)])
    assert world.visible() == [("a", 1), ("b", 3)]
    (group,) = list_quarantine(query_of(world)).groups
    assert (group.rows, group.column, group.reason) == (2, "k", "Column k is not UTF-8.")


def test_rule_24_a_refused_row_is_kept_when_its_epoch_is_trimmed() -> None:
    """With its reason, and the timestamp right before those of its epoch; the others arrive."""
    world = QuarantiningWorld()
    run = world.run().flushed_batches([("a", 1)])
    world.clock.us -= 1_000  # so the epoch's timestamps follow right upon those used before
    run.batch([("b", 2), (REFUSED, 7), (REFUSED, 8)], [("c", 3)], [(REFUSED, 9)])
    found = world.log.manifest(Attempt(1, 1))
    assert found is not None
    assert (found.manifest.rows, found.manifest.refused_rows) == (2, 3)
    assert found.manifest.bytes == sum(
        world.log_backend.size(segment.path) for segment in found.manifest.files
    ), "the budget counts them"
    assert entries(world.log) == [], "not flushed yet"
    assert world.flushed() == {"a": 1, "b": 2, "c": 3}
    assert world.log_backend.list("segments/") == []
    records = world.log.flushed_since(-1)
    assert records[1].base_us - 3 == records[0].last_us + 1
    assert listed(world) == [
        (1, records[1].base_us - 3, {"k": None, "v": 7}),
        (1, records[1].base_us - 2, {"k": None, "v": 8}),
        (1, records[1].base_us - 1, {"k": None, "v": 9}),
    ]
    (group,) = list_quarantine(query_of(world)).groups
    assert (group.rows, group.kind, group.column) == (3, "InvalidRow", "k")
    assert group.reason == "Key column k is null"
    status = read_status(Checkpoint(world.checkpoint), world.log)
    assert (status.quarantined_rows, status.safe_to_delete) == (3, False)
    assert "quarantine" in repr(status)


def test_an_epoch_of_refused_rows_alone_is_flushed() -> None:
    """A poison row never blocks the rows behind it."""
    world = QuarantiningWorld()
    world.run().batches([(REFUSED, 1)], [("a", 1)])
    assert world.flushed() == {"a": 1}
    assert [epoch for epoch, *_ in listed(world)] == [0]


def some_refused(epoch: int, run: str) -> list[Rows]:
    """Return the rows of the other tests of faults, with a refused one where there are rows."""
    rows = partitions(epoch, run)
    return [*rows, [(REFUSED, None)]] if rows else []


@pytest.mark.parametrize("when", get_args(When))
@pytest.mark.parametrize("role", ["run", "flusher", "flusher of a backlog"])
def test_rule_24_every_fault_is_recovered_from(role: str, when: When) -> None:
    """Each refused row of a kept attempt is listed once, none of another; the table is whole."""
    hit = every_fault(QuarantiningWorld, role, when, some_refused)
    if role != "run":
        assert sum("quarantine/" in name for name in hit) >= EPOCHS - 1
    covered(f"fault at every operation of a {role} with refused rows, {when}", str(len(hit)))


def test_rule_24_a_damaged_segment_of_refused_rows_stops_the_flush() -> None:
    """Before the mark moves: what is trimmed then would be the only copy."""
    world = QuarantiningWorld()
    world.run().batch([("a", 1), (REFUSED, 2)])
    found = world.log.manifest(Attempt(0, 1))
    assert found is not None
    (segment,) = found.manifest.refused
    world.log_backend.delete([segment.path])
    with pytest.raises(errors.MissingSegment):
        world.flush()
    assert world.state.flushed == -1


def test_rule_24_what_is_flushed_again_after_a_rewind_is_listed_once() -> None:
    """With the timestamps of the new flush: older ones would lose against rows of earlier epochs."""
    world = QuarantiningWorld()
    world.retention_s = 1_000.0
    world.run().flushed_batches([("a", 1)], [("b", 2), (REFUSED, 5)])
    before = listed(world)
    silent = query_of(world)._replace(patience=Patience(say=lambda _: None))
    plan_rewind(silent, world.target, -1, world.clock()).carry_out(world.clock())
    assert listed(world) == []
    world.flush()
    after = listed(world)
    assert [(epoch, row) for epoch, _, row in after] == [(epoch, row) for epoch, _, row in before]
    records = world.log.flushed_since(-1)
    assert after[0][1] == records[1].base_us - 1 > before[0][1]


def test_rule_24_what_a_rewind_takes_out_is_not_put_back_by_a_flusher_that_stood_still() -> None:
    """Before it kept a refused row of a window that others have finished, and flushed again since.

    The row would be listed twice, with two timestamps: a target that adds rows would take both.
    """
    world = QuarantiningWorld()
    world.retention_s = 1_000.0
    world.run().batch([("a", 1), (REFUSED, 5)])

    def flushed_twice() -> None:
        world.flush()
        rewind(world, -1)
        assert listed(world) == []
        world.flush()

    world.flush(At("output quarantine/", flushed_twice))
    record = world.log.flushed(0)
    assert record is not None
    assert listed(world) == [(0, record.base_us - 1, {"k": None, "v": 5})]


def test_rule_24_what_had_left_with_timestamps_of_the_future_is_listed_again() -> None:
    """A retry had sent the row. Then the clock was set right, and the table filled anew, a while later."""
    world = RefusingWorld()
    world.retention_s = 10**6
    present_us, refuses = world.clock.us, world.store.refuses
    world.clock.us += 2 * 10**9
    world.run().flushed_batches([("a", 1), ("bad", -777)])
    before = listed(world)
    world.store.refuses = lambda _: ""
    plan_retry(query_of(world), world.target).carry_out(world.clock())
    assert world.table() == {"a": 1, "bad": -777}
    world.clock.us, world.store.refuses = present_us, refuses
    world.store.table.clear()
    silent = query_of(world)._replace(patience=Patience(say=lambda _: None))
    plan_rewind(silent, world.target, -1, present_us, reset_by=world.clock).carry_out(present_us)
    world.clock.us += 4 * 10**9
    assert world.flushed() == {"a": 1}
    assert listed(world) == before


def test_rule_24_what_is_begun_again_in_place_of_a_lost_row_is_listed_again() -> None:
    """With the same timestamps, so under the same name."""
    world = QuarantiningWorld()
    world.run().flushed_batches([("a", 1)]).batch([("b", 2), (REFUSED, 5)])
    with pytest.raises(Crash):
        world.flush(Faults(0, matching="finish "))
    before = listed(world)
    assert len(before) == 1
    del world.store.ledger[world.query_id]
    rewind(world, 0)
    assert world.flushed() == {"a": 1, "b": 2}
    assert listed(world) == before


def test_rule_24_a_rewind_that_died_is_run_again_until_all_refused_rows_have_left() -> None:
    """Also behind the last record: the flush would keep the rows again, and list them twice."""

    def rewinds(world: World, faults: Faults) -> None:
        patience = Patience(itertools.count(0, 60).__next__, lambda _: None, lambda _: None)
        asked = faulty(world, faults)._replace(patience=patience)
        plan_rewind(asked, world.target, -1, world.clock()).carry_out(world.clock())

    for number in itertools.count():
        world = QuarantiningWorld()
        world.retention_s = 1_000.0
        world.run().flushed_batches([("a", 1), (REFUSED, 5)], [("b", 2), (REFUSED, 6)])
        try:
            rewinds(world, Faults(number, matching="quarantine/"))
            break
        except Crash:
            if listed(world):
                rewinds(world, Faults())
        world.flush()
        assert [(epoch, row) for epoch, _, row in listed(world)] == [
            (0, {"k": None, "v": 5}),
            (1, {"k": None, "v": 6}),
        ], number
    covered("fault at every operation of a rewind about refused rows", str(number))


class FlushesAmid(Faults):
    """Lets a flusher in as soon as a rewind has deleted the last record."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self.came_in = False

    @contextlib.contextmanager
    def around(self, name: str) -> Iterator[None]:
        """Surround one operation of the rewind."""
        yield
        if name.startswith("delete flushed/") and not self._world.log.flushed_epochs():
            self._world.flush()
            self.came_in = True


def test_rule_24_a_rewind_leaves_what_a_new_flush_keeps() -> None:
    """A flusher may begin before the command has ended: its entries are the only copies of their rows."""
    world = QuarantiningWorld()
    world.retention_s = 1_000.0
    world.run().flushed_batches([("a", 1), (REFUSED, 5)])
    amid = FlushesAmid(world)
    log = Log(FaultyBackend(world.log_backend, amid))
    silent = Patience(say=lambda _: None)
    query = Query(world.query_id, Checkpoint(world.checkpoint), log, patience=silent)
    plan_rewind(query, world.target, -1, world.clock()).carry_out(world.clock())
    assert amid.came_in
    record = world.log.flushed(0)
    assert record is not None
    assert listed(world) == [(0, record.base_us - 1, {"k": None, "v": 5})]


def test_rule_24_a_rewind_leaves_the_refused_rows_of_what_was_given_up() -> None:
    """No flush keeps them again: the epoch stays given up, and its entry is what there is of them."""
    world = QuarantiningWorld()
    world.retention_s = 1_000.0
    world.run().flushed_batches([("a", 1), (REFUSED, 4)]).batches([("b", 2), (REFUSED, 5)])
    with pytest.raises(Crash):
        world.flush(Faults(0, matching="finish "))
    before = listed(world)
    assert [epoch for epoch, *_ in before] == [0, 1]
    query, later = query_of(world), world.clock.us + 600_000_000
    copy = open_backend(f"memory://{uuid.uuid4().hex}/copy")
    plan_skip(query, world.target, 1, copy, later, begun=True).carry_out(later)
    world.flush()
    silent = query._replace(patience=Patience(say=lambda _: None))
    plan_rewind(silent, world.target, -1, later).carry_out(later)
    assert listed(world) == before[1:]
    world.flush()
    assert [epoch for epoch, *_ in listed(world)] == [0, 1]
    assert world.table() == {"a": 1, "b": 2}, "b was there before its epoch was given up"


def test_rule_24_what_one_of_several_targets_refuses_goes_to_none(tmp_path: Path) -> None:
    """They hold the same rows; each has its own list, with its own timestamps."""
    world = SeveralWorld(tmp_path)
    world.on_invalid_row = "quarantine"
    frame = world.frame
    world.frame = lambda rows: frame(  # type: ignore[method-assign]
        [(None if k == REFUSED else k, v) for k, v in rows]
    )
    world.run().batch([("a", 1), (REFUSED, 2)])
    world.flush_all()
    for name in (CELLS, ADDED):
        assert world.rows(name) == [("a", 1)]
        ((epoch, _, row),) = listed(world, name)
        assert (epoch, row) == (0, {"k": None, "v": 2})
    assert world.log_backend.list("segments/") == []


# --- rows that the target refuses in the flush ----------------------------------------------------


@pytest.mark.parametrize("when", get_args(When))
@pytest.mark.parametrize("role", ["flusher", "flusher of a backlog"])
def test_rule_24_every_fault_of_a_flush_with_refused_rows_is_recovered_from(
    role: str, when: When
) -> None:
    """Each is listed once; the rows before and behind it are there, with the timestamps that they have."""
    hit = every_fault(RefusingWorld, role, when, refused_later)
    assert sum("create quarantine/" in name for name in hit) >= EPOCHS - 1
    covered(f"fault at every operation of a {role} with rows refused in it, {when}", str(len(hit)))


def test_who_has_the_quarantine_is_not_told_to_set_it() -> None:
    """What refuses is no row: the table is gone."""
    world = RefusingWorld()

    def gone(_: object) -> str:
        raise errors.TargetRefused("no such table", "Restore it.")

    world.store.refuses = gone
    world.run().batch([("a", 1)])
    with pytest.raises(errors.TargetRefused) as caught:
        world.flush()
    assert caught.value.remedy == f"Restore it. {errors.while_refused(may_quarantine=False)}"
    assert "onInvalidRow" not in caught.value.remedy


def test_rule_24_a_refused_row_does_not_block_those_behind_it() -> None:
    """The flush goes on in the same window, and says which row, when and why."""
    world = RefusingWorld()
    world.run().batches([("a", 1), ("bad", -777), ("b", 2)], [("c", 3)])
    assert world.flushed() == {"a": 1, "b": 2, "c": 3}
    record = world.log.flushed(0)
    assert record is not None
    assert listed(world) == [(0, record.base_us + 1, {"k": "bad", "v": -777})]
    (group,) = list_quarantine(query_of(world)).groups
    assert (group.kind, group.reason) == ("TargetRefused", "three sevens")
    assert group.remedy == "Change the target. Then run `wal-sink quarantine CHECKPOINT --retry`."


def test_rule_24_what_was_decided_is_passed_over_by_every_flusher() -> None:
    """Also by one that stops at refused rows, and when the target would take the row by now."""
    world = RefusingWorld()
    world.run().batch([("a", 1), ("bad", -777), ("b", 2)])
    with pytest.raises(Crash):
        world.flush(Faults(0, matching="finish "))
    assert [row for *_, row in listed(world)] == [{"k": "bad", "v": -777}]
    world.on_invalid_row = "fail"
    world.store.refuses = lambda _: ""
    assert world.flushed() == {"a": 1, "b": 2}


def test_rule_24_a_timestamp_that_comes_again_passes_over_no_row_of_another_epoch() -> None:
    """An operator has brought timestamps back from the future, and that comes, with a row of that time."""
    world = RefusingWorld()
    world.clock.us += 2 * 10**9
    run = world.run().flushed_batches([("a", 1), ("bad", -777)])
    ((_, us, _),) = listed(world)
    world.clock.us -= 2 * 10**9
    now_us = world.clock.us
    plan_rewind(query_of(world), world.target, 0, now_us, reset_by=lambda: now_us).carry_out(now_us)
    world.clock.us = us - 2
    run.batch([("b", 2)])
    record = world.log.manifest(Attempt(1, 1))
    assert record is not None
    assert record.manifest.published_us == us, "the test is about this timestamp"
    with pytest.raises(Crash):
        world.flush(Faults(0, matching="write "))
    assert world.flushed() == {"a": 1, "b": 2}


def test_fail_stops_the_flush_at_the_row() -> None:
    """As ever, until the target takes it."""
    world = RefusingWorld()
    world.on_invalid_row = "fail"
    world.run().batch([("a", 1), ("bad", -777)])
    with pytest.raises(errors.TargetRefused, match="three sevens") as caught:
        world.flush()
    ways = errors.while_refused(may_quarantine=True)
    assert caught.value.remedy == f"Change the target. {ways}"
    assert "`wal-sink skip CHECKPOINT EPOCH --to URL --begun`" in ways
    assert "onInvalidRow=quarantine" in ways
    assert listed(world) == []
    world.store.refuses = lambda _: ""
    assert world.flushed() == {"a": 1, "bad": -777}


def test_verify_finds_that_the_flush_stands_at_a_refused_row() -> None:
    """No other look shows it; it is over when the epoch is flushed, or given up."""
    world = RefusingWorld()
    world.on_invalid_row = "fail"
    world.run().batch([("a", 1), ("bad", -777)])
    with pytest.raises(errors.TargetRefused):
        FlushCommand(query_of(world), world.target).drain()
    (finding,) = verify(query_of(world), lambda: world.target, NOW_US).findings
    assert (finding.kind, finding.epoch) == ("TargetRefused", 0)
    assert finding.exit_code == errors.TargetRefused.exit_code
    assert "three sevens" in finding.what
    world.store.refuses = lambda _: ""
    world.flush()  # by another flusher: the report is as it was
    assert verify(query_of(world), lambda: world.target, NOW_US).findings == ()


# --- sent again -----------------------------------------------------------------------------------


def refuse_negative(world: World) -> None:
    """Let the tasks refuse negative values, as if the table had a narrower column."""
    check = world.store.check

    def picky(batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        if any(value is not None and value < 0 for value in batch.column("v").to_pylist()):
            raise errors.InvalidRow("v is negative", "Widen the column.", column="v")
        return check(batch, plan)

    world.store.check = picky  # type: ignore[method-assign]


def repair(world: World) -> None:
    """Let the target take what it has refused."""
    world.store.check = MemoryTarget.check.__get__(world.store)  # type: ignore[method-assign]
    world.store.refuses = lambda _: ""


def fill(world: World) -> None:
    """Flush rows of which some are refused, by the tasks or in the flush; later epochs write some of them."""
    refuse_negative(world)
    world.store.refuses = lambda row: "too large" if row["v"] > 1_000 else ""
    run = world.run()
    run.batch([("old", 1), ("lone", -1), ("a", 2)], [("newer", -2), ("large", 5_000)])
    run.batch([("newer", 3), ("old", -3)])
    run.batch([("large", 4), ("old", 6_000)])
    assert world.flushed() == {"old": 1, "a": 2, "newer": 3, "large": 4}
    assert len(listed(world)) == 5


REPAIRED = {"old": 6_000, "a": 2, "newer": 3, "large": 4, "lone": -1}
"""Each key has the row that is the newest by its epoch, whichever way it came."""


def retry(world: World, faults: Faults | None = None) -> Retried:
    """Send what is in quarantine again, as the command does."""
    faults = faults or Faults()
    log = Log(FaultyBackend(world.log_backend, faults))
    query = Query(world.query_id, Checkpoint(world.checkpoint), log)
    return plan_retry(query, FaultyTarget(world.target, faults)).carry_out(world.clock())


def test_rule_24_rows_that_are_sent_again_hide_nothing_newer() -> None:
    """Each has the timestamp of its epoch; what was sent has left, also for a flusher that stood still."""
    world = QuarantiningWorld()
    fill(world)
    before = world.log_backend.list("quarantine/")
    assert retry(world).left == 5, "nothing is repaired"
    assert world.log_backend.list("quarantine/") == before
    repair(world)
    done = retry(world)
    assert (done.sent, done.left) == (5, 0)
    assert world.table() == REPAIRED
    assert listed(world) == []
    assert retry(world).sent == 0
    status = read_status(Checkpoint(world.checkpoint), world.log)
    assert (status.quarantined_rows, status.safe_to_delete) == (0, True)


def test_rule_24_what_has_left_goes_with_the_record_of_its_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else every look would list it for ever; what is still there stays."""
    monkeypatch.setattr("wal_sink.wal.trim.RECORDS_KEPT", 3)
    world = QuarantiningWorld()
    fill(world)
    world.store.check = MemoryTarget.check.__get__(world.store)  # type: ignore[method-assign]
    assert (retry(world).left, len(world.log_backend.list("quarantine/"))) == (2, 5)
    world.flush()
    assert len(world.log_backend.list("quarantine/")) == 5, "another flusher may still resume them"
    world.run().flushed_batches(*([("a", epoch)] for epoch in range(6)))
    stay = listed(world)
    world.flush()
    assert len(world.log_backend.list("quarantine/")) == len(listed(world)) == 2
    assert listed(world) == stay


def test_rule_24_a_retry_of_rows_that_the_check_joins_releases_each_of_them() -> None:
    """Rows of one key and event time become fewer, so what is written does not tell how many were sent."""
    world = QuarantiningWorld()
    refuse_negative(world)
    world.run().batch([("a", -1), ("b", 1), ("a", -2)])
    assert world.flushed() == {"b": 1}

    def joins(batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        last = {key: row for row, key in enumerate(batch.column("k").to_pylist())}
        return batch.take(pa.array(last.values(), pa.int64()))

    world.store.check = joins  # type: ignore[method-assign]
    done = retry(world)
    assert (done.sent, done.left) == (2, 0)
    assert listed(world) == []
    assert world.table() == {"a": -2, "b": 1}


def test_what_is_refused_again_stays() -> None:
    """The others leave: of one entry as well."""
    world = QuarantiningWorld()
    fill(world)
    world.store.check = MemoryTarget.check.__get__(world.store)  # type: ignore[method-assign]
    done = retry(world)
    assert (done.sent, done.left, done.refused) == (3, 2, ("too large",))
    assert [row for *_, row in listed(world)] == [
        {"k": "large", "v": 5_000},
        {"k": "old", "v": 6_000},
    ]
    repair(world)
    assert retry(world).sent == 2
    assert world.table() == REPAIRED


@pytest.mark.parametrize("when", get_args(When))
def test_rule_24_a_retry_that_dies_is_run_again(when: When) -> None:
    """At every operation: no row leaves the list before it is in the table, and none hides a newer one."""
    hit = 0
    while True:
        world = QuarantiningWorld()
        fill(world)
        repair(world)
        faults = Faults(
            hit,
            when="before" if when == "before" else "after",
            error=Crash if when != "answer lost" else ConnectionError,
        )
        with contextlib.suppress(Crash, OSError, errors.WalSinkError):
            retry(world, faults)
        if faults.injected is None:
            break
        missing = {row["k"] for *_, row in listed(world)}  # type: ignore[index]
        for key, value in REPAIRED.items():
            assert world.table().get(key) == value or key in missing, faults.injected
        retry(world)
        assert world.table() == REPAIRED
        assert listed(world) == []
        World.forget(world)
        hit += 1
    assert hit > 15
    covered(f"fault at every operation of a retry, {when}", str(hit))


class LaterRefusingWorld(AddingWorld):
    """Adds rows to a table of SQLite, which refuses a text by a trigger."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.on_invalid_row = "quarantine"
        self.change(
            "CREATE TRIGGER bad BEFORE INSERT ON t WHEN NEW.k = 'bad' BEGIN SELECT RAISE(ABORT, 'no'); END"
        )

    def change(self, statement: str) -> None:
        """Run a statement as another client does."""
        with contextlib.closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute(statement)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("role", ["flush", "retry"])
def test_rule_24_a_target_that_adds_rows_has_each_once_whatever_dies(
    tmp_path: Path, role: str, when: Literal["before", "after"]
) -> None:
    """A flush, or a retry, dies at every operation; the next one goes on."""
    for at in itertools.count():
        dying = Faults(at, when=when, error=Crash)
        world = LaterRefusingWorld(tmp_path)
        world.run().batch([("a", 1), ("bad", 2), ("b", 3), ("bad", 4)])
        with contextlib.suppress(Crash):
            world.flush(dying if role == "flush" else Faults())
        world.end_sessions()
        world.flush()
        assert sorted(world.visible()) == [("a", 1), ("b", 3)]
        world.change("DROP TRIGGER bad")
        with contextlib.suppress(Crash):
            retry(world, dying if role == "retry" else Faults())
        world.end_sessions()
        retry(world)
        assert sorted(world.visible()) == [("a", 1), ("b", 3), ("bad", 2), ("bad", 4)]
        assert listed(world) == []
        if dying.injected is None:
            break
    assert at > 5


def refuse(world: LaterRefusingWorld, by: str) -> Run:
    """Let the row "bad" be refused: by the tasks, or by the table in the flush."""
    check = type(world.target).check.__get__(world.target)

    def picky(batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        if "bad" in batch.column("k").to_pylist():
            raise errors.InvalidRow("k is bad", "Repair it.", column="k")
        return check(batch, plan)

    world.retention_s = 1_000.0
    if by == "task":
        world.target.check = picky  # type: ignore[method-assign]
    run = world.run()
    run.batch([("a", 1), ("bad", 2)])
    world.flush()
    assert (world.visible(), len(listed(world))) == ([("a", 1)], 1)
    world.target.check = check  # type: ignore[method-assign]
    world.change("DROP TRIGGER bad")
    return run


def retrying(world: World, stop: int, before: str = "") -> Process:
    """Return `wal-sink quarantine --retry` as a process that stops before one of some operations."""

    def act(turns: Turns) -> None:
        assert retry(world, turns).left == 0

    return Process(Turns(stop, counts=lambda name: name.startswith(before)), act)


@pytest.mark.parametrize("by", ["task", "table"])
def test_rule_24_a_retry_that_stood_still_over_a_rewind_adds_nothing(
    tmp_path: Path, by: str
) -> None:
    """The row comes again with its epoch. The command stops at each of its operations."""
    for stop in itertools.count():
        world = LaterRefusingWorld(tmp_path)
        refuse(world, by)
        late = retrying(world, stop)
        late.turn()
        world.change("DELETE FROM t")
        rewind(world, -1)
        world.flush()
        late.turn()
        retry(world)
        assert sorted(world.visible()) == [("a", 1), ("bad", 2)], late.turns.stopped_before
        assert listed(world) == []
        if not late.turns.stopped_before:
            break
    assert stop > 5


@pytest.mark.parametrize("by", ["task", "table"])
def test_rule_24_a_rewind_that_died_before_the_entries_lets_no_retry_add_a_row_twice(
    tmp_path: Path, by: str
) -> None:
    """The flush goes on without the command. The next flusher deletes what was in quarantine before."""
    world = LaterRefusingWorld(tmp_path)
    refuse(world, by)
    world.change("DELETE FROM t")
    dying = faulty(world, Faults(0, matching="create quarantine/", error=Crash))
    with pytest.raises(Crash):
        plan_rewind(dying, world.target, -1, world.clock()).carry_out(world.clock())
    world.flush()
    done = retry(world)
    assert sorted(world.visible()) == [("a", 1), ("bad", 2)]
    assert (done.sent, done.left) == (1 if by == "task" else 0, 1)
    assert "Epoch 0 was flushed again" in done.refused[0]
    assert len(listed(world)) == 1
    world.flush()
    assert listed(world) == []


@pytest.mark.parametrize("by", ["task", "table"])
def test_rule_24_after_a_rewind_that_died_a_retry_adds_a_row_once(tmp_path: Path, by: str) -> None:
    """At each of its operations: where its epoch is flushed again, and where it is not."""
    for at in itertools.count():
        world = LaterRefusingWorld(tmp_path)
        refuse(world, by)
        dies = Faults(at, error=Crash)
        now_us = world.clock()
        with contextlib.suppress(Crash):
            plan_rewind(faulty(world, dies), world.target, -1, now_us).carry_out(now_us)
        if world.state.flushed < 0:
            world.change("DELETE FROM t")
        try:
            world.flush()
        except errors.LedgerBehindLog:
            rewind(world, -1)
            world.flush()
        retry(world)
        assert sorted(world.visible()) == [("a", 1), ("bad", 2)], dies.injected
        world.flush()
        assert listed(world) == [], dies.injected
        if dies.injected is None:
            break


def test_rule_24_an_entry_of_the_future_that_a_rewind_has_left_is_not_sent(tmp_path: Path) -> None:
    """Its epoch was flushed again as of the present, and the rewind died before it deleted the entry."""
    world = LaterRefusingWorld(tmp_path)
    world.clock.us += 2 * 10**12
    refuse(world, "table")
    world.clock.us -= 2 * 10**12
    now_us = world.clock()
    plan = plan_rewind(query_of(world), world.target, 0, now_us, reset_by=world.clock)
    plan.carry_out(now_us)
    world.change("DELETE FROM t")
    dying = faulty(world, Faults(0, matching="delete quarantine/", error=Crash))
    with pytest.raises(Crash):
        plan_rewind(dying, world.target, -1, now_us).carry_out(now_us)
    world.flush()
    assert len(listed(world)) == 1
    assert retry(world).sent == 0
    assert sorted(world.visible()) == [("a", 1), ("bad", 2)]


def test_rule_24_a_time_that_was_left_behind_and_comes_takes_no_entry_away() -> None:
    """It lies between the timestamps of refused rows and those of their epoch, which was never taken back."""
    world = QuarantiningWorld()
    world.retention_s = 1_000.0
    world.clock.us += 2 * 10**12
    run = world.run().flushed_batches([("a", 1)])
    rewind(world, -1)
    world.flush()
    world.clock.us -= 2 * 10**12
    now_us = world.clock()
    plan = plan_rewind(query_of(world), world.target, 0, now_us, reset_by=world.clock)
    plan.carry_out(now_us)
    left_us = max(int(each.after["last_us"]) for each in world.log.interventions("rewind"))
    world.clock.us = left_us
    run.flushed_batches([("b", 2), *[(REFUSED, n) for n in range(9)]])
    before = listed(world)
    assert len(before) == 9
    assert before[0][1] < left_us < before[-1][1] + 1
    world.flush()
    assert listed(world) == before


def test_rule_24_a_rewind_of_a_later_epoch_leaves_rows_to_be_sent(tmp_path: Path) -> None:
    """Theirs is not flushed again."""
    world = LaterRefusingWorld(tmp_path)
    refuse(world, "table").batch([("b", 3)])
    world.flush()
    world.change("DELETE FROM t WHERE k = 'b'")
    rewind(world, 0)
    world.flush()
    assert retry(world).sent == 1
    assert sorted(world.visible()) == [("a", 1), ("b", 3), ("bad", 2)]


@pytest.mark.parametrize("by", ["task", "table"])
def test_rule_24_two_retries_add_a_row_once(tmp_path: Path, by: str) -> None:
    """One stops at each of its operations while the other one acts; neither fails."""
    for stop in itertools.count():
        world = LaterRefusingWorld(tmp_path)
        refuse(world, by)
        late = retrying(world, stop)
        late.turn()
        retry(world)
        late.turn()
        assert sorted(world.visible()) == [("a", 1), ("bad", 2)], late.turns.stopped_before
        assert listed(world) == []
        if not late.turns.stopped_before:
            break


def test_rule_24_a_retry_goes_on_beside_a_flusher(tmp_path: Path) -> None:
    """Which moves the ledger row between its look and its row."""
    world = LaterRefusingWorld(tmp_path)
    run = refuse(world, "table")
    late = retrying(world, 0, "resend")
    late.turn()
    run.batch([("b", 3)])
    world.flush()
    late.turn()
    assert sorted(world.visible()) == [("a", 1), ("b", 3), ("bad", 2)]


def test_a_retry_to_a_target_that_adds_rows_without_notes_is_refused(tmp_path: Path) -> None:
    """A lost answer would double them."""
    world = SeveralWorld(tmp_path)
    world.targets[ADDED].resends = False
    world.run().batch([("a", 1)])
    with pytest.raises(errors.OptionError, match="adds rows"):
        plan_retry(query_of(world, ADDED), world.targets[ADDED])
