"""What librdkafka's errors mean."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from wal_sink.targets.base import Kind

_FOR_GOOD = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,  # noqa: SLF001 -- their public names
    KafkaError._SSL,  # noqa: SLF001
    KafkaError._INVALID_ARG,  # noqa: SLF001
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TRANSACTION_TIMEOUT,
    KafkaError.INVALID_CONFIG,
    KafkaError.POLICY_VIOLATION,
    KafkaError.UNSUPPORTED_VERSION,
}
"""What a broker would refuse again. All others may pass: brokers come and go, another flusher fences, and a
broker that has just started knows no topic for a moment."""


def classify(error: Exception) -> Kind:
    """Return what an exception means."""
    if not isinstance(error, KafkaException):
        return "fatal"
    found = error.args[0]
    return "fatal" if isinstance(found, KafkaError) and found.code() in _FOR_GOOD else "retry"
