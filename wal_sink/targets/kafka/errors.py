"""Errors of librdkafka: their classes, and a filter for the log of its clients."""

from __future__ import annotations

import logging
import time

from confluent_kafka import KafkaError, KafkaException

from wal_sink.targets.base import ErrorClass

REFUSED = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
}
"""The errors of a record that a topic refuses."""

_PERMANENT = REFUSED | {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,  # noqa: SLF001 -- documented names
    KafkaError._SSL,  # noqa: SLF001
    KafkaError._INVALID_ARG,  # noqa: SLF001
    KafkaError.INVALID_TRANSACTION_TIMEOUT,
    KafkaError.INVALID_CONFIG,
    KafkaError.POLICY_VIOLATION,
    KafkaError.UNSUPPORTED_VERSION,
}
"""The errors that a broker would return again. Any other error may pass, such as a restart of a broker or a
topic that a broker does not know yet."""


def classify(error: Exception) -> ErrorClass:
    """Return "fatal" for an error that would occur again, and "retry" for an error that may pass."""
    if not isinstance(error, KafkaException):
        return "fatal"
    kafka_error = error.args[0]
    return (
        "fatal"
        if isinstance(kafka_error, KafkaError) and kafka_error.code() in _PERMANENT
        else "retry"
    )


_FAIL_EVERY_S = 60.0


class _FailFilter(logging.Filter):
    """Drops a report that a broker does not answer, unless the last such report is a minute old.

    A client that waits for a broker reports about 20 failed connections a second.
    """

    _last_s = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the record is to be logged."""
        if not record.getMessage().startswith("FAIL "):
            return True
        now_s = time.monotonic()
        if now_s - self._last_s < _FAIL_EVERY_S:
            return False
        self._last_s = now_s
        return True


client_logger = logging.getLogger(__name__)
"""The logger of each client of librdkafka."""
client_logger.addFilter(_FailFilter())
