"""DataFrames that are not records of Kafka: the expression in the error is pasted, and makes the record."""

from __future__ import annotations

import re
import time
import uuid

import pytest
from pyspark.sql import DataFrame, SparkSession, functions

from tests.kafka.conftest import consumed, kafka_target
from wal_sink.demo.kafka import Broker
from wal_sink.errors import SchemaMismatch
from wal_sink.targets.base import RowSlice
from wal_sink.testing.contracts.ledger import create
from wal_sink.testing.contracts.rows import deliver

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

NOW_MS = time.time_ns() // 1_000_000
"""A record of an older time may be deleted by the topic's retention before it is read."""
JSON = b'{"id":1,"name":"Anna"}'


def first_record(kafka: Broker, topic: str) -> tuple[object, ...]:
    """Return key, value, headers and time of the first committed record."""
    (message,) = consumed(kafka, [topic], 1)
    assert message.error() is None
    return message.key(), message.value(), message.headers(), message.timestamp()[1]


@pytest.mark.parametrize(
    ("columns", "place", "wanted"),
    [
        ("named_struct('id', 1, 'name', 'Anna') AS value", 1, JSON),
        ("map('id', 1) AS value", 1, b'{"id":1}'),
        ("array(1, 2) AS value", 1, b"[1,2]"),
        ("named_struct('id', 1, 'name', 'Anna') AS key, 'v' AS value", 0, JSON),
        ("12 AS value", 1, b"12"),
        ("'v' AS Value", 1, b"v"),
        ("'v' AS value, 'k' AS KEY", 0, b"k"),
        ("'v' AS value, map('a', 'b') AS headers", 2, [("a", b"b")]),
        ("'v' AS value, map('a', 12) AS headers", 2, [("a", b"12")]),
        ("'v' AS value, map(1, X'0102') AS headers", 2, [("1", b"\x01\x02")]),
        ("'v' AS value, array(named_struct('k', 'a', 'v', 'b')) AS headers", 2, [("a", b"b")]),
        ("'v' AS value, 'b' AS headers", 2, [("…", b"b")]),
        pytest.param(f"'v' AS value, {NOW_MS}L AS timestamp", 3, NOW_MS, id="timestamp"),
        ("1 AS id, 'Anna' AS name", 1, JSON),
    ],
)
def test_remedy_for_a_column_makes_a_kafka_record(
    spark: SparkSession, kafka: Broker, columns: str, place: int, wanted: object
) -> None:
    """Spark runs the expression from the error, and a broker gets the record."""
    topic = f"t-{uuid.uuid4().hex}"
    kafka.create_topic(topic)
    target = kafka_target(kafka.address, topic)
    frame = spark.sql(f"SELECT {columns}")
    with pytest.raises(SchemaMismatch) as caught:
        target.plan(frame.toArrow().schema, "key")
    fixed = pasted(frame, caught.value.what).toArrow()
    plan = target.plan(fixed.schema, "another")
    with target.connect(topic) as session:
        create(session, topic)
        (batch,) = fixed.to_batches()
        deliver(session, plan, RowSlice(0, target.check(batch, plan), 0))
    assert first_record(kafka, topic)[place] == wanted


def pasted(frame: DataFrame, error: str) -> DataFrame:
    """Return the DataFrame that the first expression of an error makes."""
    expressions = re.findall(r"(\.(?:withColumn|select)\w*\(.*\))", error)
    assert expressions, error
    chosen = next(
        (expression for expression in expressions if expression.startswith(".select")),
        expressions[0],
    )
    fixed = eval(f"frame{chosen}", {"frame": frame, "F": functions})
    assert isinstance(fixed, DataFrame)
    return fixed
