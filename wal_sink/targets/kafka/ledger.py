"""The ledger of the Kafka target: the last committed record of a query in a compacted topic.

Kafka acknowledges a commit before readers of committed records see it: the markers come a moment later. So a
read takes the end of the topic, with what is not committed, and reads until everything up to there is either
committed or aborted. A flusher that died in between leaves a transaction open, which holds all readers up;
whoever is to write ends it by `init_transactions`, and the broker does after the transaction's time-out.
"""

from __future__ import annotations

import logging
import time

import msgspec
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from wal_sink.errors import CorruptLog, TargetUnavailable
from wal_sink.model.ledger import Mark, Window

logger = logging.getLogger(__name__)

_POLL_S = 0.1
_END = KafkaError._PARTITION_EOF  # noqa: SLF001 -- its public name


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    """The value of a ledger record."""

    log_id: str
    checkpoint: str
    flushed: int
    last_us: int
    begun: str
    last: str


msgspec.json.Decoder(_Row)  # learned while one thread imports this, see `model.codec.learn`


class LedgerReader:
    """Reads one query's mark, from where it read last.

    :param client: what every client is given.
    :param timeout_s: for each request.
    """

    def __init__(
        self, client: dict[str, object], topic: str, query_id: str, timeout_s: float
    ) -> None:
        self._place = TopicPartition(topic, 0, 0)
        self._query_id = query_id.encode()
        self._timeout_s = timeout_s
        self._admin = AdminClient(client, logger=logger)
        self._consumer = Consumer(
            {
                **client,
                "group.id": "wal_sink",  # which is never joined
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
            },
            logger=logger,
        )
        self._consumer.assign([self._place])
        self._upto = 0
        """Everything before this offset is read."""
        self._row: bytes | None = None

    def read(self, patience_s: float) -> Mark | None:
        """Read all that is in the topic when this is called; None when there is no record of the query.

        :param patience_s: how long a transaction that is open may hold this up.
        :raises KafkaException: no answer.
        :raises TargetUnavailable: a transaction is open for longer.
        :raises CorruptLog: the record is not one that this version wrote.
        """
        end = self._end()
        if end < self._upto:  # the topic was made anew, or cut: what was read of it counts no more
            self._upto, self._row = 0, None
            self._consumer.assign([self._place])
        until_s = time.monotonic() + patience_s
        while self._upto < end:
            if time.monotonic() > until_s:
                raise TargetUnavailable(
                    f"A transaction holds the ledger topic {self._place.topic} since {patience_s:.0f} s",
                    "Nothing: the next flusher ends it, or else the broker (kafka.transaction.timeout.ms).",
                )
            message = self._consumer.poll(_POLL_S)
            if message is None:
                continue
            error = message.error()
            if error is None:
                if message.key() == self._query_id:
                    self._row = message.value()
            elif error.code() == _END:
                self._upto = max(self._upto, message.offset())
            else:
                raise KafkaException(error)
        return None if self._row is None else self._mark(self._row)

    def close(self) -> None:
        """Disconnect. Idempotent."""
        self._consumer.close()

    def _end(self) -> int:
        """Return the offset after the last record of the topic, committed or not."""
        (future,) = self._admin.list_offsets(
            {self._place: OffsetSpec.latest()},
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=self._timeout_s,
        ).values()
        return int(future.result().offset)

    def _mark(self, text: bytes) -> Mark:
        try:
            row = msgspec.json.decode(text, type=_Row)
            begun, last = (Window.from_text(w) if w else None for w in (row.begun, row.last))
        except msgspec.DecodeError as error:
            raise CorruptLog(
                f"The record of query {self._query_id.decode()} in the topic {self._place.topic} is not"
                f" what this version of wal_sink writes: {error}",
                "Flush with the newer version that wrote it. Do not delete it: it says what is in the topic"
                " already.",
            ) from error
        return Mark(
            log_id=row.log_id,
            checkpoint=row.checkpoint,
            flushed=row.flushed,
            last_us=row.last_us,
            begun=begun,
            last=last,
        )


def to_bytes(mark: Mark) -> bytes:
    """Encode a mark as the value of a ledger record."""
    begun, last = (w.to_text() if w else "" for w in (mark.begun, mark.last))
    return msgspec.json.encode(
        _Row(
            log_id=mark.log_id,
            checkpoint=mark.checkpoint,
            flushed=mark.flushed,
            last_us=mark.last_us,
            begun=begun,
            last=last,
        )
    )
