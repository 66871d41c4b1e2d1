"""Starts and tasks refuse what the topics of a real broker would refuse."""

from __future__ import annotations

import pickle
import time
import uuid
import zlib

import msgspec
import pyarrow as pa
import pytest
from confluent_kafka import KafkaException, Producer

from tests.kafka.conftest import altered, consumed, kafka_target, new_topic, send
from wal_sink.demo.kafka import Broker
from wal_sink.errors import (
    InvalidRow,
    OptionError,
    SchemaMismatch,
    TargetRefused,
    TargetUnavailable,
)
from wal_sink.targets.base import RowSlice
from wal_sink.targets.kafka.errors import client_logger
from wal_sink.targets.kafka.records import TOPICS, planned_limits
from wal_sink.testing.contracts.ledger import create
from wal_sink.testing.contracts.rows import BASE_US, deliver

RECORD = pa.schema([("key", pa.string()), ("value", pa.string())])
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
def topic(kafka: Broker) -> str:
    return new_topic(kafka, max_message_bytes="1000")


@pytest.mark.parametrize(
    ("partitions", "settings", "reason"),
    [
        (2, {"cleanup.policy": "compact"}, "has 2 partitions"),
        (1, {}, "cleanup.policy delete"),
        (1, {"cleanup.policy": "compact,delete"}, "cleanup.policy compact,delete"),
        (1, {"cleanup.policy": "compact"}, "segments of 1,073,741,824 bytes"),
    ],
)
def test_ledger_topic_without_compaction_is_refused(
    kafka: Broker, topic: str, partitions: int, settings: dict[str, str], reason: str
) -> None:
    """The start refuses it, and each session, since a topic may be altered."""
    kafka.create_topic(f"ledger-{topic}", partitions, settings)
    made = kafka_target(kafka.address, topic, **{"kafka.ledgerTopic": f"ledger-{topic}"})
    with pytest.raises(SchemaMismatch, match=reason):
        made.plan(RECORD, "key")
    with (
        made.connect("query") as session,
        pytest.raises(SchemaMismatch, match=reason),
    ):
        create(session, "query")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"kafka.transaction.timeout.ms": "3600000"}, r"timeout\.ms is 3600000"),
        ({"kafka.compression.type": "zip"}, r"kafka\.compression\.type"),
        ({"topic": "a, b", "kafka.ledgerTopic": "b"}, "both name b"),
        ({"topic": " , "}, "Option topic is .* names no topic"),
        ({"kafka.security.protocol": "SASL_SSL"}, "kafka.sasl.mechanism is missing"),
    ],
)
def test_unfit_option_is_refused(
    kafka: Broker, topic: str, options: dict[str, str], error: str
) -> None:
    with pytest.raises(OptionError, match=error):
        kafka_target(kafka.address, **{"topic": topic} | options).plan(RECORD, "key")


@pytest.mark.parametrize("largest", [500, 2_147_483_647])
def test_topic_limit_outside_the_clients_range_is_accepted(kafka: Broker, largest: int) -> None:
    """Librdkafka takes limits of 1,000 to 1,000,000,000 bytes. Topics may have others."""
    topic = new_topic(kafka, max_message_bytes=str(largest))
    made = kafka_target(kafka.address, topic)
    send(made, made.plan(RECORD, "key"), pa.record_batch([["k"], ["v"]], RECORD))
    assert kafka.records(topic) == [(b"k", b"v")]


def test_error_names_the_broker_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal_sink.targets.kafka.topics.TIMEOUT_S", 0.5)
    with pytest.raises(TargetUnavailable, match=r"Kafka at 127\.0\.0\.1:1 does not answer"):
        kafka_target("127.0.0.1:1", "t").plan(RECORD, "key")


def test_broker_without_an_answer_is_logged_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A client of librdkafka reports 20 failed connections a second."""
    monkeypatch.setattr("wal_sink.targets.kafka.topics.TIMEOUT_S", 1.0)
    monkeypatch.setattr(client_logger.filters[0], "_last_s", float("-inf"))
    target = kafka_target("127.0.0.1:1", "orders")
    for _ in range(2):
        with target.connect("query") as session, pytest.raises(KafkaException):
            session.read()
    assert [record.name for record in caplog.records] == [client_logger.name]
    assert "Connection refused" in caplog.text


@pytest.mark.parametrize(
    ("options", "topic"), [("orders, ", "orders"), (" a,b ,, a", "a,b"), ("orders", "orders")]
)
def test_list_of_topics_is_normalized(options: str, topic: str) -> None:
    """Spaces, empty names and repetitions do not count."""
    made = kafka_target("localhost:1", options)
    assert (made.options.topic, made.writes_to) == (topic, topic)
    assert made.options.topics == tuple(topic.split(","))
    assert made.shape == kafka_target("localhost:1", topic).shape
    assert pickle.loads(pickle.dumps(made.options)) == made.options


def test_compacted_topic_takes_no_record_without_a_key(kafka: Broker, topic: str) -> None:
    """The task refuses it if the topic was compacted at the start. Otherwise the brokers refuse it."""
    made = kafka_target(kafka.address, topic)
    plan = made.plan(RECORD, "key")
    no_key = pa.schema([("value", pa.string())])
    unkeyed = made.check(pa.record_batch([pa.array([None], pa.string()), ["v"]], RECORD), plan)
    altered(kafka, topic, "cleanup.policy", "compact")
    with pytest.raises(SchemaMismatch, match=r"key: the topic .* is compacted"):
        made.plan(no_key, "key")
    with pytest.raises(InvalidRow, match=r"has no key, and its topic is compacted.* t-"):
        made.check(unkeyed, made.plan(RECORD, "key"))
    with made.connect(topic) as session:
        create(session, topic)
        session.compare(plan)
        with pytest.raises(
            TargetRefused, match=f"The topic {topic} refuses the record with key=None"
        ):
            deliver(session, plan, RowSlice(0, unkeyed, BASE_US))
    send(made, plan, pa.record_batch([["k"], ["v"]], RECORD))
    assert kafka.records(topic) == [(b"k", b"v")]


def test_record_above_a_lowered_limit_stops_the_flush(kafka: Broker, topic: str) -> None:
    """The flush continues after the topic is set back."""
    made = kafka_target(kafka.address, topic)
    plan = made.plan(RECORD, "key")
    rows = RowSlice(0, made.check(pa.record_batch([["k"], ["x" * 800]], RECORD), plan), BASE_US)
    with made.connect(topic) as session:
        create(session, topic)
    altered(kafka, topic, "max.message.bytes", "500")
    refusal = f"(?s)The topic {topic} refuses the record with key=.*set it back"
    with made.connect(topic) as session, pytest.raises(TargetRefused, match=refusal):
        deliver(session, plan, rows)
    altered(kafka, topic, "max.message.bytes", "1000")
    with made.connect(topic) as session:
        deliver(session, plan, rows)
    assert kafka.records(topic) == [(b"k", b"x" * 800)]


@pytest.mark.parametrize("partitioner", ["murmur2", "crc32"])
def test_key_chooses_the_partition_by_its_hash(kafka: Broker, partitioner: str) -> None:
    """The hashes are from Kafka's UtilsTest.testMurmur2. crc32 is zlib's."""
    java = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    count = 97
    topic = new_topic(kafka, partitions=count)
    made = kafka_target(kafka.address, topic, **{"kafka.partitioner": partitioner})
    producer = Producer({**made.options.client, **made.options.producer})
    partitions: dict[bytes, int] = {}
    for key in java:
        producer.produce(
            topic, b"v", key, on_delivery=lambda _, m: partitions.update({m.key(): m.partition()})
        )
    assert producer.flush(30) == 0
    hashes = java if partitioner == "murmur2" else {key: zlib.crc32(key) for key in java}
    positive = 0x7FFFFFFF if partitioner == "murmur2" else 0xFFFFFFFF
    assert partitions == {key: (number & positive) % count for key, number in hashes.items()}


def test_records_for_another_topic_stop_the_flush(kafka: Broker, topic: str) -> None:
    kafka.create_topic(f"other-{topic}")
    former = kafka_target(kafka.address, topic)
    other = kafka_target(kafka.address, f"other-{topic}")
    plan = former.plan(RECORD, "key")
    rows = former.check(pa.record_batch([["k"], ["v"]], RECORD), plan)
    with other.connect(topic) as session:
        create(session, topic)
        for use in (session.compare, lambda plan: deliver(session, plan, RowSlice(0, rows, 0))):
            with pytest.raises(OptionError, match=f"for the topic {topic}, .* name other-{topic}"):
                use(plan)
    assert kafka.records(f"other-{topic}") == []


def test_headers_partitions_and_nulls_arrive(kafka: Broker) -> None:
    """Spark's own sink would write the same records."""
    topic = new_topic(kafka, partitions=3)
    made = kafka_target(kafka.address, topic)
    schema = pa.schema(
        {"key": pa.binary(), "value": pa.string(), "headers": HEADERS, "partition": pa.int32()}
    )
    rows = [
        {"key": b"a", "value": "é", "headers": [{"key": "h", "value": b"1"}], "partition": 2},
        {"key": None, "value": "no key", "headers": None, "partition": 1},
        {"key": b"gone", "value": None, "headers": [{"key": "n", "value": None}], "partition": 1},
    ]
    send(made, made.plan(schema, "key"), pa.RecordBatch.from_pylist(rows, schema))
    current = {
        (m.partition(), m.key(), m.value(), str(m.headers())) for m in consumed(kafka, [topic], 3)
    }
    assert current == {
        (2, b"a", "é".encode(), "[('h', b'1')]"),
        (1, None, b"no key", "None"),
        (1, b"gone", None, "[('n', None)]"),
    }


@pytest.mark.test_all
def test_broker_whose_id_begins_with_a_dash_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """One random id of 64 begins with a dash, which Kafka's tool reads as an option."""
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(bytes=b"\xfb" + bytes(15)))
    with Broker() as broker:
        assert "cluster.id=-" in (broker.folder / "data" / "meta.properties").read_text()


COLUMNS = {
    "topic": pa.string(),
    "key": pa.string(),
    "value": pa.string(),
    "partition": pa.int32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "headers": HEADERS,
}
ROUTED = pa.schema(list(COLUMNS.items()))
DAY_MS = 86_400_000


def routed(**row: object) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"key": "k", "value": "v", **row}], ROUTED)


def test_rows_are_written_to_the_topic_they_name(kafka: Broker) -> None:
    """One transaction has rows for both topics. A row is checked by the limits of its topic."""
    topics = [f"{name}-{uuid.uuid4().hex}" for name in ("orders", "returns")]
    kafka.create_topic(topics[0], partitions=3, settings={"cleanup.policy": "compact"})
    kafka.create_topic(topics[1], settings={"max.message.bytes": "1000"})
    made = kafka_target(kafka.address, ", ".join(topics))
    plan = made.plan(ROUTED, "key")
    ms = 1_700_000_000_123
    first = routed(topic=topics[0], timestamp=ms * 1000 + 999, value="x" * 2000, partition=2)
    rows = pa.concat_batches([first, routed(topic=topics[1], timestamp=None, key=None)])
    began_ms = time.time_ns() // 1_000_000
    send(made, plan, rows)
    assert kafka.records(topics[0]) == [(b"k", b"x" * 2000)]
    assert kafka.records(topics[1]) == [(None, b"v")]
    times = {record.topic(): record.timestamp()[1] for record in consumed(kafka, topics, 2)}
    assert times[topics[0]] == ms, "microseconds are cut off"
    assert times[topics[1]] >= began_ms
    far_us = (began_ms + 400 * DAY_MS) * 1000
    returned: dict[str, object] = {"topic": topics[1]}
    mistakes: list[tuple[dict[str, object], str]] = [
        ({"topic": "elsewhere"}, "it is elsewhere, and the option has orders-.*, returns-"),
        ({"topic": None}, "it is None, and the option has"),
        ({"topic": topics[0], "key": None}, "its topic is compacted: Kafka refuses it in orders-"),
        (returned | {"value": "x" * 1000}, "1129 bytes, and returns-.* takes 1000"),
        (returned | {"headers": [{"key": "h", "value": b"v" * 900}]}, "returns-.* takes 1000"),
        (returned | {"headers": [{"key": None, "value": b"v"}]}, "has no key, or a key with a NUL"),
        (returned | {"headers": [{"key": "a\0b", "value": b"v"}]}, "or a key with a NUL"),
        *((returned | {"partition": n}, f"it is {n}, and returns-.* has 1") for n in (-1, 1, 99)),
        (returned | {"timestamp": 0}, "not after 1970-01-01 00:00: it is 1970-01-01 "),
        (returned | {"timestamp": far_us}, "further ahead .* returns-.* takes 3600000 ms"),
    ]
    for wrong, reason in mistakes:
        with pytest.raises(InvalidRow, match=reason) as caught:
            made.check(pa.concat_batches([first, routed(**wrong)]), plan)
        assert caught.value.rows.to_pylist() == [False, True]
        assert "start the query again" in caught.value.remedy, "the topic may be altered"
    now = routed(topic=topics[1], timestamp=time.time_ns() // 1000)
    narrow = planned_limits(plan)[topics[1]]
    limits = {topics[1]: msgspec.structs.replace(narrow, ahead_ms=1)}
    strict = msgspec.structs.replace(plan, details={TOPICS: msgspec.to_builtins(limits)})
    assert made.check(now, strict).num_rows == 1, "the present time fits any topic"


def test_topics_that_replace_or_bound_times_are_refused(kafka: Broker, topic: str) -> None:
    """One error has a line for each problem of each topic."""
    kafka.create_topic(f"now-{topic}", settings={"message.timestamp.type": "LogAppendTime"})
    kafka.create_topic(f"new-{topic}", settings={"message.timestamp.before.max.ms": "60000"})
    schema = pa.schema([("timestamp", COLUMNS["timestamp"])])
    with pytest.raises(SchemaMismatch) as caught:
        kafka_target(kafka.address, f"now-{topic},new-{topic}").plan(schema, "key")
    what = caught.value.what
    assert f"the topic now-{topic} gives records the time at which they arrive" in what
    assert f"the topic new-{topic} refuses a record that is older than 60,000 ms" in what
    assert "topic: option topic names now-" in what
    assert "value: it is not in the DataFrame" in what
    with pytest.raises(SchemaMismatch, match=f"no topic nor-{topic}. Did you mean n"):
        kafka_target(kafka.address, f"nor-{topic}").plan(RECORD, "key")
