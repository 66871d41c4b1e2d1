"""Reads the ledger's topic, as a conditional update needs it: to its end, past open transactions.

The ledger is the last committed record of a query in a compacted topic. Each query has a topic of its own,
unless the user names one: see `KafkaOptions.ledger_of`. Kafka acknowledges a commit before readers of
committed records get it: the markers come a moment later. So a read takes the end of the topic, with what
is not committed, and reads until everything up to there is either committed or aborted. A flusher that died
in between leaves a transaction open, which holds all readers up; whoever is to write ends it by
`init_transactions`, and the broker does after the transaction's time-out.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Any

import msgspec
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from wal_sink.errors import TargetUnavailable
from wal_sink.model.ledger import LedgerRow
from wal_sink.targets.kafka import topics
from wal_sink.targets.kafka.options import KafkaOptions

logger = logging.getLogger(__name__)

_POLL_S = 0.1
_END = KafkaError._PARTITION_EOF  # noqa: SLF001 -- its public name
_SILENT = KafkaError(KafkaError._TIMED_OUT, "the ledger's records do not come")  # noqa: SLF001 -- as above

_AT_END_MS = 10
"""How long a broker holds back the answer that a topic has no more records. Each read of the ledger waits for
it; the default is half a second."""


class LedgerReader:
    """Reads one query's ledger row, from where it read last.

    :param timeout_s: for each request.
    """

    def __init__(self, options: KafkaOptions, query_id: str, timeout_s: float) -> None:
        self.topic = options.ledger_of(query_id)
        self.admin = topics.admin_of(options)
        self.held_by = b""
        """The key of the record whose open transaction the last `read` waited for in vain."""
        self._client = options.client
        self._place = TopicPartition(self.topic, 0, 0)
        self._query_id = query_id
        self._timeout_s = timeout_s
        self._consumer = self._made("read_committed")
        self._there = False
        """Whether the topic is known to be there."""
        self._upto = 0
        """Everything before this offset is read."""
        self._rows: dict[bytes, bytes | None] = {}
        """The last record of each key."""

    def read(self, patience_s: float) -> LedgerRow | None:
        """Read all that is in the topic when this is called; None when there is no record of the query.

        :param patience_s: how long a transaction that is open may hold this up.
        :raises KafkaException: no answer.
        :raises TargetUnavailable: a transaction is open for longer.
        :raises SchemaMismatch: the topic is missing, and may not be created.
        :raises CorruptLog: the record is not one that this version wrote.
        """
        if (end := self._end()) is None:
            return None
        if (
            end < self._upto
        ):  # the topic was made again, or cut: what was read of it no longer counts
            self._begin()
        if self._upto < end:
            self._consumer.assign([TopicPartition(self.topic, 0, self._upto)])
            try:
                self._read_to(end, patience_s)
            finally:
                self._consumer.unassign()  # else it would ask the broker for more between reads
        return self._last()

    def _read_to(self, end: int, patience_s: float) -> None:
        until_s, at_open = time.monotonic() + patience_s, False
        while self._upto < end:
            if time.monotonic() > until_s:
                raise self._held_up(patience_s) if at_open else KafkaException(_SILENT)
            message = self._consumer.poll(_POLL_S)
            if message is None:
                continue
            error = message.error()
            if error is None:
                until_s = time.monotonic() + patience_s  # much is there, and no one holds it
                self._rows[message.key()] = message.value()
            elif error.code() == _END:
                at_open = True  # unless it is the end
                self._upto = max(self._upto, message.offset())
            else:
                raise KafkaException(error)

    def _last(self) -> LedgerRow | None:
        """Return the last record among those that were read; None if none was.

        :raises CorruptLog: the record is not one that this version wrote.
        """
        record = self._rows.get(self._query_id.encode())
        if record is None:
            return None
        try:
            cells: tuple[object, ...] = msgspec.json.decode(record, type=tuple[str, str, int, str])
        except msgspec.DecodeError:
            cells = (self._query_id, "", None, record.decode(errors="replace"))
        return LedgerRow.from_cells(cells, f"the topic {self.topic}")

    def close(self) -> None:
        """Disconnect. Idempotent."""
        self._consumer.close()

    def _end(self) -> int | None:
        """Return the offset after the last record of the topic, committed or not; None: there is no topic."""
        if not self._there:
            if not topics.is_there(self.admin, self.topic):
                topics.create_ledger(self.admin, self.topic, dry=True)  # raises if it may be there
                self._rows.clear()
                return None
            self._begin()
        (future,) = self.admin.list_offsets(
            {self._place: OffsetSpec.latest()},
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=self._timeout_s,
        ).values()
        try:
            return int(future.result().offset)
        except KafkaException:
            self._there = False  # it may have been deleted
            raise

    def _begin(self) -> None:
        """Read from the first record on."""
        self._there, self._upto = True, 0
        self._rows.clear()

    def _held_up(self, patience_s: float) -> TargetUnavailable:
        """Return the error that says whose open transaction is in the way; its records begin at `_upto`."""
        with contextlib.closing(self._made("read_uncommitted")) as consumer:
            consumer.assign([TopicPartition(self.topic, 0, self._upto)])
            message = consumer.poll(self._timeout_s)
        key = None if message is None or message.error() else message.key()
        self.held_by = key or b""
        query_id = self.held_by.decode(errors="replace")
        holder = f"query {query_id}" if query_id else "a program that is none of ours"
        return TargetUnavailable(
            f"The ledger's topic {self.topic} cannot be read to its end for {patience_s:.0f} s: a transaction"
            f" of {holder} is open there. Its flusher has died or is stalled.",
            "Start that query again, which ends the transaction; or wait: the broker ends it after the"
            " kafka.transaction.timeout.ms of that query."
            + (
                ""
                if query_id == self._query_id
                else " Without kafka.ledgerTopic each query has a topic of its own."
            ),
        )

    def _made(self, isolation: str) -> Any:
        return Consumer(
            {
                **self._client,
                "group.id": "wal_sink",  # which is never joined
                "enable.auto.commit": False,
                "isolation.level": isolation,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": _AT_END_MS,
            },
            logger=logger,
        )
