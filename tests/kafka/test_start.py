"""What a query is told when it starts, over a real broker."""

from __future__ import annotations

import uuid

import pyarrow as pa
import pytest
from confluent_kafka import Consumer

from wal_sink.errors import InvalidRow, OptionError, SchemaMismatch, TargetUnavailable
from wal_sink.model.ledger import Owner
from wal_sink.options import parse
from wal_sink.targets.base import Slice
from wal_sink.targets.compared import Compares
from wal_sink.targets.kafka import KafkaTarget
from wal_sink.targets.kafka.options import KafkaOptions
from wal_sink.testing.contracts.rows import deliver
from wal_sink.testing.kafka.broker import Broker

RECORD = pa.schema([("key", pa.string()), ("value", pa.string())])
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
def topic(kafka: Broker) -> str:
    name = f"t-{uuid.uuid4().hex}"
    kafka.create_topic(name, settings={"max.message.bytes": "1000"})
    return name


def target(address: str, topic: str, **given: str) -> KafkaTarget:
    options = {"kafka.bootstrap.servers": address, "topic": topic}
    return KafkaTarget(
        parse({**options, "kafka.ledgerTopic": f"ledger-{topic}", **given}, KafkaOptions)
    )


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (pa.schema([("key", pa.string())]), "no column value"),
        (pa.schema([("value", pa.string()), ("id", pa.int64())]), "no column id"),
        (pa.schema([("value", pa.int64())]), "value is int64"),
        (pa.schema([("value", pa.string()), ("partition", pa.int64())]), "partition is int64"),
        (pa.schema([("value", pa.string()), ("headers", pa.string())]), "headers is string"),
    ],
)
def test_a_dataframe_that_is_no_record_is_refused(
    kafka: Broker, topic: str, schema: pa.Schema, why: str
) -> None:
    with pytest.raises(SchemaMismatch, match=why):
        target(kafka.address, topic).plan(schema, "key")


def test_topics_are_looked_at(kafka: Broker, topic: str) -> None:
    """One that is missing; a ledger that Kafka would delete, or that has several partitions."""
    with pytest.raises(SchemaMismatch, match="There is no topic missing"):
        target(kafka.address, "missing").plan(RECORD, "key")
    with pytest.raises(SchemaMismatch, match="is not compacted"):
        target(kafka.address, topic, **{"kafka.ledgerTopic": topic}).plan(RECORD, "key")
    kafka.create_topic(f"wide-{topic}", 2, {"cleanup.policy": "compact"})
    with pytest.raises(SchemaMismatch, match="several partitions"):
        target(kafka.address, topic, **{"kafka.ledgerTopic": f"wide-{topic}"}).plan(RECORD, "key")


def test_a_broker_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal_sink.targets.kafka.topics._TIMEOUT_S", 0.5)
    with pytest.raises(TargetUnavailable, match=r"No broker of 127\.0\.0\.1:1 answers"):
        target("127.0.0.1:1", "t").plan(RECORD, "key")


def test_a_word_that_is_none_of_an_option_is_refused() -> None:
    with pytest.raises(OptionError, match=r"kafka\.compression\.type"):
        target("127.0.0.1:1", "t", **{"kafka.compression.type": "zip"})


def test_rows_that_the_topic_would_refuse_are_refused_in_the_task(
    kafka: Broker, topic: str
) -> None:
    """Before anything of their epoch is published."""
    columns = {"value": pa.string(), "headers": HEADERS, "partition": pa.int32()}
    schema = pa.schema(list(columns.items()))
    made = target(kafka.address, topic)
    plan = made.plan(schema, "key")

    def check(value: str = "x", headers: object = None, partition: int | None = None) -> None:
        row = {"value": value, "headers": headers, "partition": partition}
        made.check(pa.RecordBatch.from_pylist([row], schema), plan)

    check("x" * 800, [{"key": "h", "value": b"v"}], 0)
    with pytest.raises(InvalidRow, match="1,000 bytes, and the topic takes 872"):
        check("x" * 1000)
    with pytest.raises(InvalidRow, match="the topic takes 872"):
        check("x" * 500, [{"key": "h", "value": b"v" * 500}])
    with pytest.raises(InvalidRow, match="header has no key"):
        check(headers=[{"key": None, "value": b"v"}])
    with pytest.raises(InvalidRow, match="partition is negative"):
        check(partition=-1)


def test_records_go_to_the_topic_that_the_options_name(kafka: Broker, topic: str) -> None:
    """What waits for another one stops the flush; the ledger's topic is the same."""
    kafka.create_topic(f"other-{topic}")
    former = target(kafka.address, topic)
    other = target(kafka.address, f"other-{topic}", **{"kafka.ledgerTopic": f"ledger-{topic}"})
    plan = former.plan(RECORD, "key")
    rows = former.check(pa.record_batch([["k"], ["v"]], RECORD), plan)
    with other.connect(Owner("query", "log", "checkpoint")) as session:
        session.create(-1)
        with pytest.raises(OptionError, match=f"for the topic {topic}, .* name other-{topic}"):
            deliver(session, plan, Slice(0, rows, 0))
        assert isinstance(session, Compares), "or `wal-sink verify` sees nothing of it"
        with pytest.raises(OptionError, match=f"for the topic {topic}, .* name other-{topic}"):
            session.compare(plan)
    assert kafka.records(f"other-{topic}") == []


def test_headers_partitions_and_nulls_arrive(kafka: Broker) -> None:
    """As Spark's own sink would write them."""
    topic = f"t-{uuid.uuid4().hex}"
    kafka.create_topic(topic, partitions=3)
    made = target(kafka.address, topic)
    columns = {
        "key": pa.binary(),
        "value": pa.string(),
        "headers": HEADERS,
        "partition": pa.int32(),
    }
    schema = pa.schema(list(columns.items()))
    plan = made.plan(schema, "key")
    rows = [
        {"key": b"a", "value": "é", "headers": [{"key": "h", "value": b"1"}], "partition": 2},
        {"key": None, "value": "no key", "headers": None, "partition": 1},
        {"key": b"gone", "value": None, "headers": [{"key": "n", "value": None}], "partition": 1},
    ]
    with made.connect(Owner(uuid.uuid4().hex, "log", "checkpoint")) as session:
        session.create(-1)
        deliver(
            session, plan, Slice(0, made.check(pa.RecordBatch.from_pylist(rows, schema), plan), 0)
        )
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.address,
            "group.id": topic,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    try:
        found = consumer.consume(3, timeout=60)
    finally:
        consumer.close()
    seen = {(m.partition(), m.key(), m.value(), str(m.headers())) for m in found}
    assert seen == {
        (2, b"a", "é".encode(), "[('h', b'1')]"),
        (1, None, b"no key", "None"),
        (1, b"gone", None, "[('n', None)]"),
    }


def test_a_broker_starts_whose_id_begins_with_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    """One random id of 64 does; Kafka's tool took it for an option, and no broker came up."""
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(bytes=b"\xfb" + bytes(15)))
    with Broker() as broker:
        assert "cluster.id=-" in (broker.folder / "data" / "meta.properties").read_text()
