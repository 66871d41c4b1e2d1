"""Failures of flushers and real brokers during a transaction."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import msgspec
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from tests.kafka.conftest import TopicWorld, kafka_target, new_topic
from tests.protocol import raw
from wal_sink.demo.kafka import Broker
from wal_sink.errors import TargetUnavailable
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.targets.kafka.session import KafkaSession, transactional
from wal_sink.targets.kafka.topics import admin_of, limits
from wal_sink.testing.contracts.ledger import create, row_of
from wal_sink.testing.faults import Crash
from wal_sink.testing.micro_batches import flush_with_retries, until_idle

ROWS = [(f"k{n}", n) for n in range(100)]


def before_finish(
    patch: pytest.MonkeyPatch, action: Callable[[KafkaSession, LedgerRow], object]
) -> None:
    """Run an action before each `finish` of a window."""
    real = KafkaSession.finish

    def finish_after(self: KafkaSession, current: LedgerRow | None, new: LedgerRow) -> Outcome:
        if current is not None:
            action(self, new)
        return real(self, current, new)

    patch.setattr(KafkaSession, "finish", finish_after)


def test_open_ledger_transaction_is_ended_by_the_next_flusher(
    make_world: Callable[[], TopicWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flusher that died between its ledger record and the commit blocks all readers of the ledger."""
    world = make_world()
    world.run().batch(ROWS)

    def die(session: KafkaSession, new: LedgerRow) -> None:
        value, key = msgspec.json.encode(new.cells), session._query_id.encode()
        session._producer.produce(session._ledger.topic, value, key, 0)
        session._producer.flush()
        session._open = False  # so this process does not abort the transaction
        raise Crash

    with monkeypatch.context() as patch:
        before_finish(patch, die)
        flusher = world.flusher()
        with pytest.raises(Crash):
            flush_with_retries(flusher)
    flush_with_retries(world.flusher())
    raw.complete(world, 1, "")


def test_dead_flusher_blocks_others_only_in_shared_ledger_topic(
    kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each query has a ledger topic of its own.

    In a topic for several queries the error names the open transaction, which only its own query can end.
    """
    topic = new_topic(kafka)
    dead, alive = (f"{name}-{topic}" for name in ("dead", "alive"))
    own = kafka_target(kafka.address, topic)
    shared = kafka_target(kafka.address, topic, **{"kafka.ledgerTopic": f"ledger-{topic}"})
    for target in (own, shared):
        for query_id in (dead, alive):
            with target.connect(query_id) as session:
                create(session, query_id)
    open_ = transactional(own.options, dead, limits(admin_of(own.options), [topic], ""), 30)
    open_.begin_transaction()
    for target in (own, shared):
        open_.produce(target.options.ledger_of(dead), b"{}", dead, 0)
    assert open_.flush(30) == 0
    monkeypatch.setattr("wal_sink.targets.kafka.session.TIMEOUT_S", 5.0)
    with own.connect(alive) as session:
        assert row_of(session).epoch == -1
    blocked = pytest.raises(TargetUnavailable, match="a transaction is open there")
    with shared.connect(alive) as session, blocked:
        session.read()
    with own.connect(dead) as session:
        assert session.read() is not None, "its own transaction is ended"
    with shared.connect(alive) as session:
        assert session.read() is not None


def test_ledger_topic_has_small_compacted_segments(kafka: Broker) -> None:
    """Kafka compacts only full segments."""
    topic = new_topic(kafka)
    made = kafka_target(kafka.address, topic)
    with made.connect(topic) as session:
        create(session, topic)
    resource = ConfigResource(ResourceType.TOPIC, made.options.ledger_of(topic))
    admin = AdminClient({"bootstrap.servers": kafka.address})  # kept until its request ends
    (future,) = admin.describe_configs([resource]).values()
    settings = future.result()
    assert settings["cleanup.policy"].value == "compact"
    assert int(settings["segment.bytes"].value) <= 1 << 20


def test_error_of_a_transaction_time_out_names_the_option(
    make_world: Callable[[], TopicWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brokers end the transaction, so its records do not count."""
    world = make_world()
    world.run().batch(ROWS)
    options = world.target.options
    short = msgspec.structs.replace(options, transaction_timeout_ms=1_000)
    monkeypatch.setattr(world.target, "options", short)
    with monkeypatch.context() as patch:
        before_finish(patch, lambda *_: time.sleep(4))  # the broker checks every half second
        with pytest.raises(TargetUnavailable, match="took longer than 1000 ms") as caught:
            until_idle(world.flusher())
    assert "raise kafka.transaction.timeout.ms" in caught.value.remedy
    world.end_sessions()
    flush_with_retries(world.flusher())
    raw.complete(world, 1, "")


def test_ledger_topic_created_again_is_read_again(
    make_world: Callable[[], TopicWorld], kafka: Broker
) -> None:
    """A session that has read the old topic must not continue with its record."""
    world = make_world()
    world.run().batch(ROWS)
    flush_with_retries(world.flusher())
    with world.target.connect(world.query_id) as session:
        assert row_of(session).epoch == 0
        topic = world.target.options.ledger_of(world.query_id)
        admin = AdminClient({"bootstrap.servers": kafka.address})
        (future,) = admin.delete_topics([topic], operation_timeout=30).values()
        future.result()
        until_s = time.monotonic() + 30
        while topic in admin.list_topics(timeout=30).topics:
            assert time.monotonic() < until_s, "the topic is not deleted"
        kafka.create_topic(topic, settings={"cleanup.policy": "compact"})
        while True:
            try:
                assert session.read() is None
                break
            except KafkaException:  # brokers learn of the topic a moment late
                assert time.monotonic() < until_s, "the topic does not answer"


def test_producer_whose_id_expired_while_idle_is_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker forgets an unused id, by default after a week, and then refuses its transaction."""
    monkeypatch.setattr("wal_sink.targets.kafka.session._IDLE_S", 0.0)
    settings = {
        "transactional.id.expiration.ms": 5000,  # longer than a slow machine takes for one window
        "transaction.remove.expired.transaction.cleanup.interval.ms": 500,
    }
    with Broker(settings) as broker:
        world = TopicWorld(broker)
        run = world.run()
        run.batch(ROWS[:1])
        flusher = world.flusher()
        until_idle(flusher)

        def has_expired() -> bool:
            states = dict(broker.records("__transaction_state", "read_uncommitted"))
            return [v for k, v in states.items() if k and world.query_id.encode() in k] == [None]

        patience_s = time.monotonic() + 60
        while not has_expired():
            assert time.monotonic() < patience_s
        run.batch(ROWS[1:2])
        caplog.clear()
        until_idle(flusher)
        assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
        raw.complete(world, 2, "")
        world.end_sessions()
