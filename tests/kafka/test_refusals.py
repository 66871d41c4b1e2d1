"""Records that a topic refuses since it was altered, through flusher and quarantine."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException

from tests.kafka.conftest import TopicWorld, altered
from wal_sink.demo.servers.kafka import Broker
from wal_sink.errors import TargetRefused, TargetUnavailable
from wal_sink.options import parse
from wal_sink.targets.base import RowSlice, RowsRefused
from wal_sink.targets.kafka import KafkaTarget
from wal_sink.targets.kafka.options import KafkaOptions
from wal_sink.testing.contracts.ledger import create, finish, following
from wal_sink.testing.contracts.rows import BASE_US, write_all
from wal_sink.testing.micro_batches import until_idle
from wal_sink.wal.refused import listed, read_refused

LONG = "x" * 5_000
ROWS = [("a", 1), (LONG, 2), ("c", 3)]


def test_record_refused_by_an_altered_topic_is_quarantined(
    make_world: Callable[[], TopicWorld], kafka: Broker
) -> None:
    """Though the session was there before the topic was altered; it is not sent once the topic takes it."""
    world = make_world()
    world.on_invalid_row = "quarantine"
    flusher = world.flusher()
    world.run().batch([("first", 0)])
    until_idle(flusher)
    altered(kafka, world.topic, "max.message.bytes", "2000")
    world.run().batch(ROWS)
    with pytest.raises(TargetUnavailable, match="was altered while its records were written"):
        until_idle(flusher)
    until_idle(flusher)
    taken = [("a", 1), ("c", 3), ("first", 0)]
    assert sorted(world.visible()) == taken
    (refused,) = listed(world.store)
    assert (refused.epoch, refused.rows) == (1, 1)
    (batch,) = read_refused(world.log_backend, refused.path)
    assert "refuses a row of epoch 1, the row with key=b'xxx" in str(batch.to_pylist())
    altered(kafka, world.topic, "max.message.bytes", "1000000")
    world.run().batch([("d", 4)])
    until_idle(flusher)
    assert sorted(world.visible()) == sorted([*taken, ("d", 4)])
    assert listed(world.store) == [refused]


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
def test_check_and_brokers_refuse_the_same_records(
    kafka: Broker, monkeypatch: pytest.MonkeyPatch, setting: str, value: str, bad: dict[str, object]
) -> None:
    """A record that this session calls refused is one that the brokers refuse."""
    topic = f"t-{uuid.uuid4().hex}"
    kafka.create_topic(topic)
    options = {
        "kafka.bootstrap.servers": kafka.address,
        "topic": topic,
        "kafka.compression.type": "none",
    }
    target = KafkaTarget(parse(options, KafkaOptions))
    plan, now_us = target.plan(SCHEMA, "key"), time.time_ns() // 1000
    rows = [{"key": f"k{n}", "value": "v", "timestamp": now_us} for n in range(9)]
    rows[4] |= bad
    checked = RowSlice(0, target.check(pa.RecordBatch.from_pylist(rows, SCHEMA), plan), BASE_US)
    altered(kafka, topic, setting, value)
    with target.connect(topic) as session:
        current = create(session, topic)
        session.write(plan, checked)
        with pytest.raises(RowsRefused) as raised:
            finish(session, current, following(current))
        assert [row.us for row in raised.value.rows] == [BASE_US + 4]
    with target.connect(topic) as session, monkeypatch.context() as patch:
        assert session.read() == current
        patch.setattr("wal_sink.targets.kafka.session.refuse", lambda *_: None)
        alone = checked._replace(batch=checked.batch.slice(4, 1))
        with pytest.raises((TargetRefused, KafkaException), match=r"key=(b'k4'|None)|large"):
            write_all(session, [(plan, alone)], current)
