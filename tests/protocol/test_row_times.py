"""Lives and event times through the whole protocol: outages, crashes, and sources out of order."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.protocol.engine import NOW_US, World, in_memory
from wal_sink import errors
from wal_sink.admin.query import Query
from wal_sink.admin.retry import plan_retry
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.model.plan import Plan
from wal_sink.options import parse
from wal_sink.protocol.steps import Rest
from wal_sink.targets.base import Target
from wal_sink.testing.cell_store import CellStore, CellStoreOptions
from wal_sink.testing.crash.faults import Faults
from wal_sink.wal.quarantine import entries

S_US = 1_000_000
_PUBLISHED_S = NOW_US // S_US


class TimedWorld(World):
    """A query in memory whose values are times, as the options say."""

    def __init__(self, kind: pa.DataType, **options: str) -> None:
        raw = {f"cassandra.{name}": value for name, value in options.items()}
        super().__init__(*in_memory(), CellStore(parse({"keys": "k", **raw}, CellStoreOptions)))
        self._schema = pa.schema([("k", pa.string()), ("v", pa.string()), ("time", kind)])

    def batch(self, *rows: tuple[str, str, Any]) -> None:
        """Run one micro-batch of keys, values and times."""
        columns = [
            pa.array(c, field.type)
            for c, field in zip(zip(*rows, strict=True), self._schema, strict=True)
        ]
        frame = pa.record_batch(columns, schema=self._schema)
        self.frame = lambda rows: frame  # type: ignore[method-assign]
        self.__dict__.setdefault("first", self.run()).batch([(rows[0][0], 0)])

    def values(self) -> dict[str, str]:
        """Return what a reader sees."""
        return {key[0]: row["v"] for key, row in self.store.rows().items()}

    def ends(self) -> dict[str, int | None]:
        """Return when the values end, in seconds since the query began."""
        cells = {key[0]: row.cells["v"].ends_s for key, row in self.store.table.items()}
        return {key: end and end - _PUBLISHED_S for key, end in cells.items()}


def test_rule_15_a_life_does_not_grow_with_an_outage() -> None:
    """An epoch waits for 500 s, is begun, written in part, and written again 300 s later."""
    world = TimedWorld(pa.int32(), ttlColumn="time")
    world.batch(("a", "1", 1000), ("b", "1", 700), ("c", "1", 100))
    world.clock.us += 500 * S_US
    flusher = world.flusher(Faults(at=0, error=ConnectionError, matching="drain"))
    flusher.run_once()
    with pytest.raises(errors.TargetUnavailable):
        flusher.run_once()
    assert world.store.ledger[world.query_id].begun
    world.clock.us += 300 * S_US
    world.flush()
    assert world.values() == {"a": "1", "b": None, "c": None}
    assert world.ends()["a"] == 1000
    world.clock.us += 2 * S_US
    assert world.values() == {"a": "1"}
    world.clock.us = NOW_US + 999 * S_US
    assert world.values() == {"a": "1"}
    world.clock.us = NOW_US + 1001 * S_US
    assert world.values() == {}


def test_rule_15_a_repetition_ends_in_the_same_second() -> None:
    """Whenever it comes while there is something left, by whichever flusher."""
    ends = set()
    for wait_s in (0, 1, 400, 998):
        world = TimedWorld(pa.int32(), ttl="1000")
        world.batch(("a", "1", 0))
        world.clock.us += wait_s * S_US
        world.flush()
        ends.add(world.ends()["a"])
    assert ends == {1000}


def test_rule_14_timestamps_ahead_of_the_clock_make_no_life_longer() -> None:
    """A ledger that was years ahead once; a row never lives for longer than it was given."""
    world = TimedWorld(pa.int32(), ttl="1000")
    world.batch(("a", "1", 0))
    world.flush()
    row = world.store.ledger[world.query_id]
    ahead = NOW_US + 10**8 * S_US
    world.store.ledger[world.query_id] = msgspec.structs.replace(row, last_us=ahead)
    world.batch(("b", "1", 0))
    world.flush()
    assert world.ends()["b"] == 1000


def test_rule_15_event_times_decide_in_any_order() -> None:
    """Of epochs and of rows; written again they change nothing; the ledger goes by its own clock."""
    versions = [("k", f"v{i}", NOW_US - i * S_US) for i in range(4)]
    for order in itertools.permutations(versions):
        world = TimedWorld(pa.int64(), timestampColumn="time")
        for row in order:
            world.batch(row, ("other", row[1], row[2]))
        world.flush()
        assert world.values() == {"k": "v0", "other": "v0"}
        last_us = world.store.ledger[world.query_id].last_us
        assert NOW_US < last_us < NOW_US + S_US, "the base of later epochs, not an event time"
        assert world.store.table["k",].cells["v"].us == NOW_US
        world.forget()


def test_rule_15_an_event_time_may_be_below_those_that_were_flushed() -> None:
    """Its row loses to what is newer, and only to that."""
    world = TimedWorld(pa.timestamp("us", "UTC"), timestampColumn="time")
    late = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    world.batch(("a", "new", _at(NOW_US)), ("b", "new", _at(NOW_US)))
    world.flush()
    world.batch(("a", "late", late), ("c", "late", late))
    world.flush()
    assert world.values() == {"a": "new", "b": "new", "c": "late"}


def test_an_event_of_the_future_publishes_nothing() -> None:
    """The task fails, and with it the micro-batch."""
    world = TimedWorld(pa.int64(), timestampColumn="time")
    with pytest.raises(errors.InvalidRow, match="ahead of the clock"):
        world.batch(("a", "1", NOW_US + 3_601 * S_US))
    assert not [path for path in world.log_backend.list() if path.startswith(("seg", "man"))]


def test_rule_24_a_retry_of_rows_of_one_key_and_time_releases_each_of_them() -> None:
    """The check makes one row of them, so what it returns does not tell how many were sent."""
    world = TimedWorld(pa.int64(), timestampColumn="time")
    world.on_invalid_row = "quarantine"
    check = world.store.check

    def picky(batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        if "bad" in batch.column("v").to_pylist():
            raise errors.InvalidRow("v is bad", "Widen the column.")
        return check(batch, plan)

    world.store.check = picky  # type: ignore[method-assign]
    world.batch(("a", "bad", NOW_US), ("b", "1", NOW_US), ("a", "bad", NOW_US))
    world.flush()
    assert world.values() == {"b": "1"}
    world.store.check = check  # type: ignore[method-assign]
    query = Query(world.query_id, Checkpoint(world.checkpoint), world.log)
    done = plan_retry(query, world.store).carry_out(world.clock())
    assert (done.sent, done.left) == (2, 0)
    assert entries(world.log) == []
    assert world.values() == {"a": "bad", "b": "1"}


class SeveralWorld(TimedWorld):
    """The same, with a second target, for which the column of seconds is one like any other."""

    def __init__(self) -> None:
        super().__init__(pa.int32(), ttlColumn="time")
        self.history = CellStore(CellStoreOptions(keys="k"))
        self.history.clock_us = self.store.clock_us

    @property
    def targets(self) -> dict[str, Target]:
        """In one of them rows expire."""
        return {"short": self.store, "history": self.history}


def test_of_several_targets_rows_expire_in_the_one_that_says_so() -> None:
    """Its flusher casts the rows as it writes them: the lives are counted from the same second."""
    world = SeveralWorld()
    world.batch(("a", "1", 1000), ("b", "1", 100))
    world.clock.us += 500 * S_US
    for name in world.targets:
        flusher = world.flusher(name=name)
        while not isinstance(flusher.run_once(), Rest):
            pass
        flusher.close()
    assert world.ends()["a"] == 1000
    assert {key[0]: row["time"] for key, row in world.history.rows().items()} == {
        "a": 1000,
        "b": 100,
    }
    world.clock.us += 2 * S_US
    assert world.values() == {"a": "1"}


def _at(us: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(us // S_US, dt.UTC)
