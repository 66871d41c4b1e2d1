"""Lists that are not frozen: the database doubles elements that are written twice with one timestamp."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import get_args

import msgspec
import pyarrow as pa
import pytest

from tests.kills.every_fault import When, every_fault, hit_by
from tests.protocol import raw
from tests.protocol.cases import covered
from tests.protocol.engine import Rows, World, flush, in_memory, until_idle
from tests.protocol.operations import At
from wal_sink.errors import OptionError, TargetRefused, TargetUnavailable
from wal_sink.flush.reporter import Reporter
from wal_sink.flush.target_connection import TargetConnection
from wal_sink.flush.window import Window
from wal_sink.model.ledger import SENDINGS
from wal_sink.publish.plans import refuse_quarantine
from wal_sink.testing.faults import AnswerLost, Faults
from wal_sink.testing.memory_target import MemoryOptions, MemoryTarget

DOUBLED = -1
pytestmark = pytest.mark.rule("repeatable")


class ListWorld(World):
    """A query whose rows have their value in a list, too."""

    def __init__(self) -> None:
        super().__init__(*in_memory(), MemoryTarget(MemoryOptions(keys="k", lists="l")))

    def frame(self, rows: Rows) -> pa.RecordBatch:
        """Return rows with their lists."""
        frame = super().frame(rows)
        lists = pa.array([[v, v] for _, v in rows], pa.list_(pa.int64()))
        return frame.append_column("l", lists)

    def visible(self) -> list[tuple[str, int]]:
        """Return the rows. A row with a wrong list has the value DOUBLED."""
        rows = self.store_target.rows().items()
        return [(key[0], row["v"] if row["l"] == [row["v"]] * 2 else DOUBLED) for key, row in rows]


@pytest.fixture
def lists() -> ListWorld:
    """A query whose table has a list."""
    return ListWorld()


def interrupted(world: World) -> None:
    """Claim a sending of the next epoch, send half of its first rows, and fail."""
    flusher = world.flusher(Faults(at=0, when="after", error=ConnectionError, matching="write"))
    with pytest.raises(TargetUnavailable):
        until_idle(flusher)
    flusher.close()


class LostClaim(Faults):
    """Loses the answer to the first claim, which has no effect.

    Meanwhile another flusher claims, sends rows and dies.
    """

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    @contextmanager
    def around(self, name: str) -> Iterator[None]:
        if name.startswith("claim sending") and self.injected is None:
            self.injected = name
            interrupted(self._world)
            raise AnswerLost
        with super().around(name):
            yield


@pytest.mark.rule("repeatable")
def test_flusher_claims_again_after_a_lost_answer(lists: ListWorld) -> None:
    """Another flusher has claimed meanwhile. Two flushers that send by one claim would double elements."""
    lists.run().batch([("a", 1), ("b", 2)])
    faults = LostClaim(lists)
    flush(lists.flusher(faults))
    assert faults.injected == "claim sending 1 of 0"
    assert lists.visible() == [("a", 1), ("b", 2)]
    raw.complete(lists, 1, "")


@pytest.mark.parametrize("when", get_args(When))
@pytest.mark.parametrize("role", ["flusher", "flusher of a backlog"])
def test_list_elements_are_not_doubled_at_any_fault(role: str, when: When) -> None:
    hit = every_fault(ListWorld, role, when)
    assert hit_by(hit, "write ", "claim ") > 1
    covered(f"lists, fault at every operation of a {role}, {when}", f"{len(hit)}")


def test_lists_sent_again_get_timestamps_of_their_own(lists: ListWorld) -> None:
    """The timestamps are later than in the sending before, and earlier than in the next epoch."""
    run = lists.run().batches([("a", 1), ("b", 2)])
    interrupted(lists)
    assert lists.row.sending == 1
    interrupted(lists)
    assert (lists.row.sending, lists.row.epoch) == (2, -1)
    first_us, last_us = lists.state.last.first_us, lists.state.last.last_us
    assert last_us == first_us + SENDINGS * 2 - 1
    lists.flush()
    cells = [row.cells["l"].us for row in lists.store_target.table.values()]
    assert cells == [first_us + 4, first_us + 5]
    assert (lists.row.sending, lists.row.epoch) == (0, 0)
    run.flushed_batches([("a", 3)])
    assert lists.store_target.table["a",].cells["l"].us > last_us
    assert lists.visible() == [("a", 3), ("b", 2)]


def test_lists_sent_16_times_stop_the_flush(lists: ListWorld) -> None:
    lists.run().batches([("a", 1)])
    for _ in range(SENDINGS):
        interrupted(lists)
    with pytest.raises(TargetRefused, match="sent 16 times") as caught:
        lists.flush()
    assert "give-up CHECKPOINT --epoch 0" in caught.value.remedy
    assert lists.row.sending == SENDINGS


def test_lists_of_a_stalled_flusher_change_nothing(lists: ListWorld) -> None:
    """Given a flusher whose rows arrive after another flusher has finished the epoch."""
    lists.run().batch([("a", 1), ("b", 2)])
    stalled = lists.flusher(At("write", lists.flush))
    flush(stalled)
    assert lists.visible() == [("a", 1), ("b", 2)]
    raw.complete(lists, 1, "")


def test_epoch_with_lists_has_a_window_of_its_own() -> None:
    """The ledger row counts the sendings of one epoch."""
    world = ListWorld()
    lists = world.store_target
    world.target = lists.with_options(MemoryOptions(keys="k"))
    world.run().batches([("a", 1)], [("b", 1)])
    world.target = lists
    world.run().batches([("c", 2)], [("d", 3)])
    faults = Faults(matching="finish")
    world.flush(faults)
    assert faults.operations == ["finish 1", "finish 2", "finish 3"]
    assert world.visible() == [("a", 1), ("b", 1), ("c", 2), ("d", 3)]


def test_lists_are_not_written_by_a_job(lists: ListWorld) -> None:
    """Spark may run a task more than once."""
    lists.run().batch([("a", 1)])
    windows: list[Window] = []

    def write(window: Window, _connection: TargetConnection, _reporter: Reporter) -> bool:
        windows.append(window)
        return False

    lists.target.parallel_writes = True
    flusher = lists.flusher()
    flusher._write_rows = write
    for _ in range(2):
        flusher.run_once()
    (window,) = windows
    assert not window.may_be_shared(0)
    plan = msgspec.structs.replace(window.plan, sent_once=False)
    assert replace(window, plan=plan).may_be_shared(0)


def test_lists_with_quarantine_are_refused() -> None:
    """Refused rows are identified by their timestamps, and each sending has other timestamps."""
    plan = ListWorld().run().plan
    refuse_quarantine([plan], "fail")
    with pytest.raises(OptionError, match="lists that are not frozen"):
        refuse_quarantine([plan], "quarantine")
