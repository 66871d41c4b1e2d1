"""Records that a topic refuses since it was altered, through flusher, quarantine and `--retry` (rule 24)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException

from tests.kafka.conftest import TopicWorld, altered
from tests.protocol.engine import until_rest
from tests.protocol.operators import rewind
from tests.protocol.quarantining import query_of
from wal_sink.admin.quarantine import list_quarantine, plan_retry
from wal_sink.errors import TargetRefused, TargetUnavailable
from wal_sink.model.ledger import Owner
from wal_sink.model.plan import Plan
from wal_sink.options import parse
from wal_sink.targets.base import Slice
from wal_sink.targets.kafka import KafkaTarget
from wal_sink.targets.kafka.options import KafkaOptions
from wal_sink.targets.kafka.session import KafkaSession
from wal_sink.testing.contracts.ledger import begin, begun_window, create
from wal_sink.testing.contracts.rows import BASE_US, write_and_drain
from wal_sink.testing.faults import Crash
from wal_sink.testing.servers.kafka import Broker

LONG = "x" * 5_000
ROWS = [("a", 1), (LONG, 2), ("c", 3)]


def test_a_row_goes_into_quarantine_and_comes_when_it_is_sent_again(
    make_world: Callable[[], TopicWorld], kafka: Broker
) -> None:
    """Though the session was there before the topic was altered; and it comes once the topic takes it."""
    world = make_world()
    world.on_invalid_row = "quarantine"
    flusher = world.flusher()
    world.run().batch([("first", 0)])
    until_rest(flusher)
    altered(kafka, world.topic, "max.message.bytes", "2000")
    world.run().batch(ROWS)
    with pytest.raises(TargetUnavailable, match="was altered while its records were written"):
        until_rest(flusher)
    until_rest(flusher)
    taken = [("a", 1), ("c", 3), ("first", 0)]
    assert sorted(world.visible()) == taken
    (group,) = list_quarantine(query_of(world)).groups
    assert (group.epoch, group.rows, group.kind) == (1, 1, "TargetRefused")
    assert "refuses row 1 of epoch 1, the row with key=b'xxx" in group.reason
    first = plan_retry(query_of(world), world.target)
    assert first.carry_out(world.clock.us).left == 1
    altered(kafka, world.topic, "max.message.bytes", "1000000")
    assert first.carry_out(world.clock.us).sent == 1
    assert sorted(world.visible()) == [*taken, ROWS[1]]
    assert list_quarantine(query_of(world)).rows == 0
    world.run().batch([("d", 4)])
    until_rest(flusher)
    assert len(world.visible()) == 5


def test_a_command_that_dies_holds_up_no_flusher(
    make_world: Callable[[], TopicWorld], kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next session ends the transaction that it has left open on the ledger."""
    world = make_world()
    world.on_invalid_row = "quarantine"
    world.run().batch(ROWS)
    altered(kafka, world.topic, "max.message.bytes", "2000")
    until_rest(world.flusher())
    altered(kafka, world.topic, "max.message.bytes", "1000000")

    def dies(self: KafkaSession) -> None:
        self._producer.flush()
        self._open = False  # nothing of it is aborted by this process
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(KafkaSession, "drain", dies)
        with pytest.raises(Crash):
            plan_retry(query_of(world), world.target).carry_out(world.clock.us)
    world.run().batch([("d", 4)])
    begin_s = time.monotonic()
    until_rest(world.flusher())
    assert time.monotonic() - begin_s < 50, "kafka.transaction.timeout.ms is 60 s"
    assert sorted(world.visible()) == [("a", 1), ("c", 3), ("d", 4)]
    assert plan_retry(query_of(world), world.target).carry_out(world.clock.us).sent == 1
    assert max(world.visible()) == ROWS[1]


def test_a_command_that_stood_still_over_a_rewind_sends_nothing(
    make_world: Callable[[], TopicWorld], kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked at the ledger, and sends when its epoch was flushed again: the rewind has fenced it."""
    world = make_world()
    world.on_invalid_row, world.retention_s = "quarantine", 3_600.0
    world.run().batch(ROWS)
    altered(kafka, world.topic, "max.message.bytes", "2000")
    until_rest(world.flusher())
    altered(kafka, world.topic, "max.message.bytes", "1000000")
    compare = KafkaSession.compare

    def overtaken(self: KafkaSession, plan: Plan) -> None:
        monkeypatch.setattr(KafkaSession, "compare", compare)
        rewind(world, -1)
        until_rest(world.flusher())
        self.compare(plan)

    monkeypatch.setattr(KafkaSession, "compare", overtaken)
    with pytest.raises(TargetUnavailable, match="fenced"):
        plan_retry(query_of(world), world.target).carry_out(world.clock.us)
    assert sorted(world.visible()) == sorted([*ROWS, *ROWS[::2]])


SCHEMA = pa.schema(
    [("key", pa.string()), ("value", pa.string()), ("timestamp", pa.timestamp("us", "UTC"))]
)


@pytest.mark.parametrize(
    ("setting", "value", "bad"),
    [
        ("cleanup.policy", "compact", {"key": None}),
        ("message.timestamp.before.max.ms", "60000", {"timestamp": 10**15}),
        ("max.message.bytes", "2000", {"value": LONG}),
    ],
)
def test_what_the_check_takes_is_what_the_brokers_take(
    kafka: Broker, monkeypatch: pytest.MonkeyPatch, setting: str, value: str, bad: dict[str, object]
) -> None:
    """A record that this session calls refused is one that the brokers refuse."""
    topic = f"t-{uuid.uuid4().hex}"
    kafka.create_topic(topic)
    given = {
        "kafka.bootstrap.servers": kafka.address,
        "topic": topic,
        "kafka.compression.type": "none",
    }
    target = KafkaTarget(parse(given, KafkaOptions))
    plan, now_us = target.plan(SCHEMA, "key"), time.time_ns() // 1000
    rows = [{"key": f"k{n}", "value": "v", "timestamp": now_us} for n in range(9)]
    rows[4] |= bad
    checked = Slice(0, target.check(pa.RecordBatch.from_pylist(rows, SCHEMA), plan), BASE_US)
    altered(kafka, topic, setting, value)
    found: dict[int, str] = {}
    with target.connect(Owner(topic, "log", "checkpoint")) as session:
        create(session)
        begin(session, window := begun_window(0, rows=9))
        session.start(window)
        session.pass_over(lambda us, error: found.update({us: error.what}))
        write_and_drain(session, plan, checked)
        assert [*found] == [BASE_US + 4]
        with monkeypatch.context() as patch:
            patch.setattr("wal_sink.targets.kafka.session.refuse", lambda *_: None)
            session.start(window)
            alone = checked._replace(batch=checked.batch.slice(4, 1))
            with pytest.raises((TargetRefused, KafkaException), match=r"key=(b'k4'|None)|large"):
                write_and_drain(session, plan, alone)
