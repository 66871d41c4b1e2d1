"""Flushers and brokers that die in the middle of a transaction, over a real broker."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable

import msgspec
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from tests.kafka.conftest import TopicWorld
from tests.protocol import raw
from wal_sink.demo.servers.kafka import Broker
from wal_sink.errors import TargetUnavailable
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.options import parse
from wal_sink.targets.base import RowSlice
from wal_sink.targets.kafka import KafkaTarget
from wal_sink.targets.kafka.options import KafkaOptions
from wal_sink.targets.kafka.session import KafkaSession, transactional
from wal_sink.targets.kafka.topics import admin_of, limits
from wal_sink.testing.contracts.ledger import create, finish, first_row, following, row_of
from wal_sink.testing.faults import Crash
from wal_sink.testing.micro_batches import flush, until_idle

ROWS = [(f"k{n}", n) for n in range(100)]


def test_open_ledger_transaction_is_ended_by_the_next_flusher(
    make_world: Callable[[], TopicWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flusher that died between its ledger record and the commit holds up all readers of the ledger."""
    world = make_world()
    world.run().batch(ROWS)

    real = KafkaSession.finish

    def dies(self: KafkaSession, current: LedgerRow | None, new: LedgerRow) -> Outcome:
        if current is None:
            return real(self, current, new)
        value, key = msgspec.json.encode(new.cells), self._query_id.encode()
        self._producer.produce(self._ledger.topic, value, key, 0)
        self._producer.flush()
        self._open = False  # nothing of it is aborted by this process
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(KafkaSession, "finish", dies)
        flusher = world.flusher()
        with pytest.raises(Crash):
            flush(flusher)
    flush(world.flusher())
    raw.complete(world, 1, "")


def test_dead_flusher_holds_up_no_other_query(
    kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each query's ledger is a topic of its own, unless the user names one for several.

    Then the error says that a flusher is in the way, and only that flusher's query can end its transaction.
    """
    topic = f"t-{uuid.uuid4().hex}"
    kafka.create_topic(topic)
    dead, alive = (f"{name}-{topic}" for name in ("dead", "alive"))
    options = {"kafka.bootstrap.servers": kafka.address, "topic": topic}
    own = KafkaTarget(parse(options, KafkaOptions))
    shared = KafkaTarget(parse({**options, "kafka.ledgerTopic": f"ledger-{topic}"}, KafkaOptions))
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
    held_up = pytest.raises(TargetUnavailable, match="a transaction is open there")
    with shared.connect(alive) as session, held_up:
        session.read()
    with own.connect(dead) as session:
        assert session.read() is not None, "its own is ended"
    with shared.connect(alive) as session:
        assert session.read() is not None


def test_ledger_is_made_to_be_compacted(kafka: Broker) -> None:
    """Its segments are full after some windows, and Kafka compacts full ones alone."""
    topic = f"t-{uuid.uuid4().hex}"
    kafka.create_topic(topic)
    options = {"kafka.bootstrap.servers": kafka.address, "topic": topic}
    made = KafkaTarget(parse(options, KafkaOptions))
    with made.connect(topic) as session:
        create(session, topic)
    resource = ConfigResource(ResourceType.TOPIC, made.options.ledger_of(topic))
    admin = AdminClient({"bootstrap.servers": kafka.address})  # its futures end with it
    (future,) = admin.describe_configs([resource]).values()
    result = future.result()
    assert result["cleanup.policy"].value == "compact"
    assert int(result["segment.bytes"].value) <= 1 << 20


@pytest.mark.test_all
def test_ledger_stays_short() -> None:
    """Kafka compacts it: what a session reads does not grow with the windows that were flushed."""
    with Broker({"log.cleaner.backoff.ms": 100}) as broker:
        broker.create_topic("t")
        options = {"kafka.bootstrap.servers": broker.address, "topic": "t"}
        made = KafkaTarget(parse(options, KafkaOptions))
        with made.connect("query") as session:
            row = first_row("query")._replace(log_id="x" * 30_000)  # its segments have a megabyte
            assert finish(session, None, row) is Outcome.APPLIED
            for _ in range(100):
                row, current = following(row), row
                assert finish(session, current, row) is Outcome.APPLIED
        topic = made.options.ledger_of("query")
        until_s = time.monotonic() + 60
        while len(broker.records(topic)) > 50:
            assert time.monotonic() < until_s, "nothing was compacted"
        with made.connect("query") as session:
            assert session.read() == row


def test_second_flusher_fences_the_first(
    make_world: Callable[[], TopicWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one, which has written all and not finished, is refused; the second one delivers."""
    world = make_world()
    world.run().batch(ROWS)
    second: list[int] = []
    real = KafkaSession.finish

    def finish_second(self: KafkaSession, current: LedgerRow | None, new: LedgerRow) -> Outcome:
        if current is not None and not second:
            second.append(1)
            flush(world.flusher())
        return real(self, current, new)

    monkeypatch.setattr(KafkaSession, "finish", finish_second)
    first = world.flusher()
    flush(first)
    assert second
    raw.complete(world, 1, "")


def test_transaction_that_times_out_names_the_setting(
    make_world: Callable[[], TopicWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brokers have ended it; its records do not count, and the operator reads which option it is."""
    world = make_world()
    world.run().batch(ROWS)
    options = world.target.options
    short = msgspec.structs.replace(options, transaction_timeout_ms=1_000)
    monkeypatch.setattr(world.target, "options", short)
    real = KafkaSession.finish

    def late(self: KafkaSession, current: LedgerRow | None, new: LedgerRow) -> Outcome:
        if current is not None:
            time.sleep(4)  # the broker checks every half second
        return real(self, current, new)

    with monkeypatch.context() as patch:
        patch.setattr(KafkaSession, "finish", late)
        with pytest.raises(TargetUnavailable, match="took longer than 1000 ms") as caught:
            until_idle(world.flusher())
    assert "raise kafka.transaction.timeout.ms" in caught.value.remedy
    world.end_sessions()
    flush(world.flusher())
    raw.complete(world, 1, "")


def test_ledger_topic_made_again_is_read_again(
    make_world: Callable[[], TopicWorld], kafka: Broker
) -> None:
    """A session that has read the old one must not go on from what it said: the log is ahead."""
    world = make_world()
    world.run().batch(ROWS)
    flush(world.flusher())
    with world.target.connect(world.query_id) as session:
        assert row_of(session).epoch == 0
        topic = world.target.options.ledger_of(world.query_id)
        admin = AdminClient({"bootstrap.servers": kafka.address})
        (future,) = admin.delete_topics([topic], operation_timeout=30).values()
        future.result()
        while topic in admin.list_topics(timeout=30).topics:
            time.sleep(0.05)
        kafka.create_topic(topic, settings={"cleanup.policy": "compact"})
        for _ in range(100):
            try:
                assert session.read() is None
                break
            except KafkaException:  # brokers hear of it a moment late
                time.sleep(0.1)
        else:
            raise AssertionError("the topic does not answer")


def test_broker_killed_in_mid_transaction_loses_nothing() -> None:
    """The flush says that it does not answer, and goes on when it is back."""
    with Broker() as broker:
        world = TopicWorld(broker)
        world.run().batch(ROWS)
        flush(world.flusher())
        world.run().batch(ROWS)
        killed: list[int] = []
        real = KafkaSession.write

        def write(self: KafkaSession, plan: object, rows: RowSlice) -> None:
            real(self, plan, rows)  # type: ignore[arg-type]
            if not killed:
                killed.append(1)
                self._producer.flush(5)
                broker.kill()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(KafkaSession, "write", write)
            patch.setattr("wal_sink.targets.kafka.session.TIMEOUT_S", 3.0)
            flusher = world.flusher()
            with pytest.raises(TargetUnavailable):
                until_idle(flusher)
            flusher.close()
        broker.start()
        flush(world.flusher())
        raw.complete(world, 2, "")
        world.end_sessions()


def test_producer_whose_id_expired_while_idle_is_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker forgets the id of a quiet query, by default after a week, and would refuse its transaction."""
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
