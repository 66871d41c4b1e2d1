"""Lists that are not frozen have elements twice that are written twice with one timestamp (rule 15)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import pyarrow as pa
import pytest

from tests.protocol import raw
from tests.protocol.cases import covered
from tests.protocol.engine import Rows, World, flush, in_memory
from tests.protocol.every_fault import When, every_fault, hit_by
from tests.protocol.interleave import two_flushers
from tests.protocol.operators import query
from wal_sink.admin.rewind import plan_rewind
from wal_sink.errors import OptionError, TargetUnavailable
from wal_sink.flush import connection
from wal_sink.flush.rows import pieces, read_piece
from wal_sink.model.ledger import Outcome, Owner
from wal_sink.protocol.next_step import Begin, Idle, Resume
from wal_sink.publish.micro_batch import refuse_quarantine
from wal_sink.testing.contracts.ledger import finish
from wal_sink.testing.faults import Faults
from wal_sink.testing.memory_target import MemoryOptions, MemoryTarget

DOUBLED = -1


class ListWorld(World):
    """Each row has its value in a list, too."""

    def __init__(self) -> None:
        super().__init__(*in_memory())
        self.have(lists="l")

    def have(self, lists: str) -> None:
        """Make the table anew, with these columns as lists."""
        self.target = self.store = MemoryTarget(MemoryOptions(keys="k", lists=lists))
        self.store.clock_us = lambda: self.clock.us

    def frame(self, rows: Rows) -> pa.RecordBatch:
        """Return rows with their lists."""
        frame = super().frame(rows)
        lists = pa.array([[v, v] for _, v in rows], pa.list_(pa.int64()))
        return frame.append_column("l", lists)

    def visible(self) -> list[tuple[str, int]]:
        """Return the rows; of one whose list is not what was written a value that none has."""
        rows = self.store.rows().items()
        return [(key[0], row["v"] if row["l"] == [row["v"]] * 2 else DOUBLED) for key, row in rows]


@pytest.fixture
def lists() -> ListWorld:
    """A query whose table has a list."""
    return ListWorld()


def interrupted(world: World, error: type[BaseException] = ConnectionError) -> None:
    """Begin the next epoch, and fail at its first rows, half of which arrive."""
    flusher = world.flusher(Faults(at=0, when="after", error=error, matching="write"))
    with pytest.raises(TargetUnavailable):
        flush_until_error(flusher)
    flusher.close()


def flush_until_error(flusher: object) -> None:
    """Run until an error."""
    for _ in range(9):
        flusher.run_once()  # type: ignore[attr-defined]


@pytest.mark.parametrize("when", get_args(When))
@pytest.mark.parametrize("role", ["flusher", "flusher of a backlog"])
def test_rule_15_every_fault_is_recovered_from(role: str, when: When) -> None:
    """A crash or a lost answer at any operation: no list is doubled, and no row lost."""
    hit = every_fault(ListWorld, role, when)
    assert hit_by(hit, "write ") > 1
    covered(f"lists, fault at every operation of a {role}, {when}", f"{len(hit)}")


def test_rule_15_a_window_that_is_resumed_has_higher_timestamps(lists: ListWorld) -> None:
    """They lie above all of the sending before, also if clocks went back, and the next epoch's above both."""
    run = lists.run().batches([("a", 1), ("b", 2)])
    interrupted(lists)
    first = lists.begun
    assert first.sending == 1
    lists.clock.us -= 60_000_000
    interrupted(lists)
    second = lists.begun
    assert (second.sending, second.epochs[0].base_us) == (2, first.last_us + 1)
    run.flushed_batches([("a", 3)])
    assert (lists.last.first, lists.last.sending) == (1, 1)
    assert lists.last.epochs[0].base_us > second.last_us + 2
    assert lists.visible() == [("a", 3), ("b", 2)]


def test_rule_15_a_table_without_lists_is_written_as_ever(world: World) -> None:
    """Its windows have no sendings: a window that is resumed keeps its timestamps."""
    world.run().batch([("a", 1)])
    flusher = world.flusher(Faults(at=0, error=ConnectionError, matching="write"))
    with pytest.raises(TargetUnavailable):
        flush_until_error(flusher)
    begun = world.begun
    assert (begun.sending, begun.sent_once) == (0, False)
    base_us = begun.epochs[0].base_us
    world.flush()
    assert world.last.epochs[0].base_us == base_us


def test_rule_15_late_rows_of_a_sending_that_was_overtaken_change_nothing(
    lists: ListWorld,
) -> None:
    """A flusher stands still before its rows; another one finishes, and then the first one sends them."""
    lists.run().batch([("a", 1), ("b", 2)])
    flusher = lists.flusher(Faults(at=0, error=ConnectionError, matching="write"))
    with pytest.raises(TargetUnavailable):
        flush_until_error(flusher)
    window = lists.begun
    (piece,) = pieces(lists.log, window.epochs[0])
    held = list(read_piece(lists.log_backend, piece))
    lists.flush()
    with lists.store.connect(Owner(lists.query_id, "", "")) as session:
        for rows in held:
            session.write(piece.plan, rows)
        session.drain()
        assert finish(session, window) is Outcome.CONFLICT
    assert lists.visible() == [("a", 1), ("b", 2)]


def test_rule_15_the_window_is_not_taken_back_at_once(
    lists: ListWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two flushers that live would take it from each other for ever."""
    lists.run().batch([("a", 1)])
    flusher = lists.flusher(Faults(at=0, error=ConnectionError, matching="write"))
    with pytest.raises(TargetUnavailable):
        flush_until_error(flusher)
    interrupted(lists)  # another flusher begins the second sending, and dies
    assert isinstance(flusher.run_once(), Idle)
    assert lists.begun.sending == 2
    monkeypatch.setattr(connection, "_PATIENCE_S", 0.0)
    assert isinstance(flusher.run_once(), Resume)
    assert lists.last.sending == 3
    assert lists.visible() == [("a", 1)]


def test_rule_15_a_flusher_stops_when_another_one_has_taken_the_window(lists: ListWorld) -> None:
    """Between two slices it looks at the ledger, and neither writes on nor finishes."""
    run = lists.run()
    run.batch([("a", 1)], [("b", 2)])
    taken: list[int] = []
    faults = Faults()
    slow = lists.flusher(faults)
    slow.run_once()
    session_type = type(lists.store.connect(Owner(lists.query_id, "", "")))
    write = session_type.write

    def overtaken(session: object, plan: object, rows: Sequence[object]) -> None:
        write(session, plan, rows)  # type: ignore[arg-type]
        if not taken:
            taken.append(1)
            lists.clock.us += 2_000_000
            interrupted(lists)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(session_type, "write", overtaken)
        slow.run_once()
    assert not any(name.startswith("finish") for name in faults.operations)
    assert lists.begun.sending == 2
    lists.flush()
    assert lists.visible() == [("a", 1), ("b", 2)]


def test_rule_15_all_pairs_of_stops_of_two_flushers_double_no_list() -> None:
    """One stops before its k-th operation, the other goes on until its j-th, then both to their ends."""
    pairs = 0
    for k in range(0, 60, 3):
        for j in range(0, 60, 3):
            world = ListWorld()
            run = world.run().batches([("a", 1), ("b", 2)])
            run.batch([("a", 3)], [("c", 4)])
            first, second = two_flushers(world, ((k,), (j,)))
            flush(world.flusher(Faults()))
            raw.complete(world, 2, (k, j))
            world.forget()
            pairs += 1
            if not second.stopped_before:
                break
        if not first.stopped_before:
            break
    covered("lists, two flushers, pairs of stops", f"{pairs}")
    assert pairs > 20


def test_rule_15_epochs_with_lists_share_a_window_with_no_others() -> None:
    """The column came later: the epochs before it are written as ever, in a window of their own."""
    world = ListWorld()
    lists, plain = world.store, MemoryTarget(MemoryOptions(keys="k"))
    world.target = plain
    world.run().batch([("a", 1)])
    world.target = lists
    run = world.run().batches([("b", 2)], [("c", 3)])
    begun = [step for step in world.flush() if isinstance(step, Begin)]
    assert len(begun) == 2
    last = world.last
    assert [each.epoch for each in last.epochs] == [1, 2]
    assert last.sending == 1
    assert world.log.plan(run.plan.key) == run.plan
    assert run.plan.sent_once


def test_rule_15_a_lost_ledger_row_does_not_double_what_was_begun(lists: ListWorld) -> None:
    """What is begun again after a rewind lies above every sending that the row may have named."""
    lists.run().flushed_batches([("a", 1)]).batches([("b", 2), ("c", 3)])
    interrupted(lists)
    del lists.store.ledger[lists.query_id]
    now_us = lists.clock.us + 600_000_000
    plan_rewind(query(lists), lists.target, 0, now_us).carry_out(now_us)
    lists.flush()
    assert lists.visible() == [("a", 1), ("b", 2), ("c", 3)]


@pytest.mark.parametrize("sendings", [0, 1])
def test_rule_15_a_restored_ledger_row_does_not_double_what_was_begun_since(
    lists: ListWorld, sendings: int
) -> None:
    """The row lacks a sending of which rows are in the table; what is begun again lies above it."""
    lists.run().flushed_batches([("a", 1)]).batches([("b", 2), ("c", 3)])
    for _ in range(sendings):
        interrupted(lists)
    backup = dict(lists.store.ledger)
    interrupted(lists)
    lists.store.ledger.update(backup)
    lists.flush()
    assert lists.visible() == [("a", 1), ("b", 2), ("c", 3)]


def test_rows_of_such_a_table_are_not_kept_in_quarantine() -> None:
    """An entry is known by its timestamp, which each sending raises; refused at the start."""
    plan = ListWorld().run().plan
    refuse_quarantine([plan], "fail")
    with pytest.raises(OptionError, match="lists that are not frozen"):
        refuse_quarantine([plan], "quarantine")


def test_rule_15_of_two_flushers_that_take_one_attempt_one_writes(
    lists: ListWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have seen the same window; the one that comes later writes nothing with these timestamps."""
    lists.run().batch([("a", 1), ("b", 2)])
    interrupted(lists)
    session_type = type(lists.store.connect(Owner(lists.query_id, "", "")))
    compare_and_set = session_type.compare_and_set

    def late(session: object, seen: object, new: object) -> object:
        monkeypatch.undo()
        interrupted(lists)
        return compare_and_set(session, seen, new)  # type: ignore[arg-type]

    monkeypatch.setattr(session_type, "compare_and_set", late)
    lists.flusher().run_once()
    assert lists.begun.sending == 2
    assert lists.visible() == [("a", 1)]
    lists.flush()
    assert lists.visible() == [("a", 1), ("b", 2)]
