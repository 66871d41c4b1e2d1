"""Reads a query's ledger row: the last committed record of the query in a compacted topic.

Kafka acknowledges a commit a moment before consumers of committed records get its records. So a read first
asks for the end of the topic, which includes uncommitted records. Then it waits until each record before that
end is committed or aborted.

A dead flusher may leave a transaction open, which blocks all consumers of committed records. The query's next
flusher ends the transaction by `init_transactions`. Otherwise the broker ends it after a time-out.
"""

from __future__ import annotations

import time

import msgspec
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from wal_sink.errors import TargetUnavailable
from wal_sink.model.ledger import LedgerRow
from wal_sink.targets.kafka import topics
from wal_sink.targets.kafka.errors import client_logger
from wal_sink.targets.kafka.options import KafkaOptions

_POLL_S = 0.1
_END = KafkaError._PARTITION_EOF  # noqa: SLF001 -- documented name
_SILENT = KafkaError(KafkaError._TIMED_OUT, "the ledger's records do not arrive")  # noqa: SLF001 -- documented name

_AT_END_MS = 10
"""The milliseconds that a broker waits for new records before it reports the end of the topic. Each read of
the ledger waits for this time. Kafka's default is 500."""


class LedgerReader:
    """Reads one query's ledger row. Each read continues at the offset where the former read ended.

    :param timeout_s: the time-out of each request, in seconds.
    """

    def __init__(self, options: KafkaOptions, query_id: str, timeout_s: float) -> None:
        self.topic = options.ledger_of(query_id)
        self.admin = topics.admin_of(options)
        self._query_id = query_id
        self._timeout_s = timeout_s
        self._consumer = Consumer(
            {
                **options.client,
                "group.id": "wal_sink",  # required, and never joined
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": _AT_END_MS,
            },
            logger=client_logger,
        )
        self._topic_exists = False
        """True if a request has shown that the topic exists."""
        self._next = 0
        """The offset of the first record that is not read yet."""
        self._record: bytes | None = None
        """The last record of the query that was read."""

    def read(self, patience_s: float) -> LedgerRow | None:
        """Read the topic to its present end, and return the ledger row. None if the query has no record.

        :param patience_s: the seconds for which an open transaction may block the read.
        :raises KafkaException: the brokers do not answer.
        :raises TargetUnavailable: an open transaction blocks the read for longer than `patience_s`.
        :raises SchemaMismatch: the topic is missing, and the user may not create it.
        :raises CorruptLog: this version of wal_sink cannot read the record.
        """
        end = self._end()
        if end < self._next:  # the topic was deleted and created again
            self._next, self._record = 0, None
        if self._next < end:
            self._consumer.assign([TopicPartition(self.topic, 0, self._next)])
            try:
                self._read_to(end, patience_s)
            finally:
                self._consumer.unassign()  # otherwise the consumer fetches between reads, too
        if self._record is None:
            return None
        try:
            cells: tuple[object, ...] = msgspec.json.decode(
                self._record, type=tuple[str, str, int, str]
            )
        except msgspec.DecodeError:
            cells = (self._query_id, "", None, self._record.decode(errors="replace"))
        return LedgerRow.from_cells(cells, f"the topic {self.topic}")

    def _read_to(self, end: int, patience_s: float) -> None:
        until_s, at_open = time.monotonic() + patience_s, False
        while self._next < end:
            if time.monotonic() > until_s:
                raise self._blocked(patience_s) if at_open else KafkaException(_SILENT)
            message = self._consumer.poll(_POLL_S)
            if message is None:
                continue
            error = message.error()
            if error is None:
                until_s = time.monotonic() + patience_s  # no transaction blocks the read
                if message.key() == self._query_id.encode():
                    self._record = message.value()
            elif error.code() == _END:
                # The consumer is at the end of the topic, or at the first record of an open transaction.
                at_open = True
                self._next = max(self._next, message.offset())
            else:
                raise KafkaException(error)

    def close(self) -> None:
        """Disconnect. A second call has no effect."""
        self._consumer.close()

    def _end(self) -> int:
        """Return the offset after the last record, committed or not. 0 if there is no topic."""
        if not self._topic_exists:
            if not topics.exists(self.admin, self.topic):
                # This call raises an error if another broker knows the topic.
                topics.create_ledger(self.admin, self.topic, dry=True)
                return 0
            self._topic_exists = True
        (future,) = self.admin.list_offsets(
            {TopicPartition(self.topic, 0, 0): OffsetSpec.latest()},
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=self._timeout_s,
        ).values()
        return int(future.result().offset)

    def _blocked(self, patience_s: float) -> TargetUnavailable:
        return TargetUnavailable(
            f"The ledger's topic {self.topic} cannot be read to its end for {patience_s:.0f} s: a transaction"
            " is open there. Its flusher has died or is stalled.",
            "Start the query of that flusher again, which ends the transaction; or wait: the broker ends it"
            " after the kafka.transaction.timeout.ms of that query. Without kafka.ledgerTopic each query has"
            " a topic of its own.",
        )
