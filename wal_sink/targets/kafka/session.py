"""The session of the Kafka target: the records of a window and its ledger record are one transaction.

All producers of a query have the same `transactional.id`. So a new producer fences the former producers.
The brokers abort a fenced producer's open transaction, and refuse its later commits. The ledger row that a
session reads after `init_transactions` therefore stays current until this session commits or is fenced. That
makes the update of the row conditional.

If a topic refuses a record, the whole transaction fails. Before that, tasks have refused the records that
exceed the limits of their topics.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException, Producer

from wal_sink.errors import OptionError, TargetRefused, TargetUnavailable
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.base import RowSlice, TransactionalSession
from wal_sink.targets.columns import published_elsewhere
from wal_sink.targets.kafka import topics
from wal_sink.targets.kafka.errors import REFUSED, client_logger
from wal_sink.targets.kafka.ledger import LedgerReader
from wal_sink.targets.kafka.options import KafkaOptions
from wal_sink.targets.kafka.records import Limits, records

logger = logging.getLogger(__name__)

TIMEOUT_S = 30.0
"""The seconds after which an answer counts as lost."""

_OPEN_TRANSACTION_S = 3.0
"""The seconds to wait for an open transaction. Then a new producer fences the former producers, which aborts
their transactions."""

_IDLE_S = 600.0
"""The seconds after which an unused producer is replaced. Brokers forget an unused `transactional.id` after
`transactional.id.expiration.ms`, and would refuse its next transaction."""

_FULL_BUFFER_S = 0.2
_SMALLEST_LIMIT = 1_000
"""The smallest value of `message.max.bytes` in bytes that librdkafka accepts."""
_FENCED = {
    KafkaError._FENCED,  # noqa: SLF001 -- documented name
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
}
_ABORTED = {
    KafkaError._PURGE_QUEUE,  # noqa: SLF001 -- documented names
    KafkaError._PURGE_INFLIGHT,  # noqa: SLF001
    KafkaError._INVALID_DIFFERENT_RECORD,  # noqa: SLF001
}
"""The errors of records that were not sent, since another record of the transaction was refused."""


class KafkaSession(TransactionalSession):
    """A flusher's session. The first write, and not a read, creates the producer, which fences others."""

    def __init__(self, options: KafkaOptions, query_id: str) -> None:
        self._options = options
        self._query_id = query_id
        self._ledger = LedgerReader(options, query_id, TIMEOUT_S)
        self._producer: Any = None
        self._used_s = 0.0
        """The time of the producer's creation or last commit, by `time.monotonic`."""
        self._open = False
        """True if the producer has an open transaction."""
        self._row: LedgerRow | None = None
        """The ledger row that was read or written last."""
        self._is_lost = False
        """True if another flusher has changed the ledger row. Then `write` sends no records."""
        self._failed: list[tuple[KafkaError, Any]] = []
        """The undelivered records, with their errors."""

    def read(self) -> LedgerRow | None:
        """Return the ledger row. If an open transaction blocks the read, a new producer aborts it."""
        self._abort()
        self._is_lost = False
        try:
            self._row = self._ledger.read(_OPEN_TRANSACTION_S)
        except TargetUnavailable as error:
            logger.info("%s A transaction of this query is ended now", error.what)
            self._row = self._take_over()
        return self._row

    def compare(self, plan: Plan) -> None:
        """Check that the plan is for the topics of the options, and that these topics exist.

        The limits of the topics are not compared with the plan, since the brokers enforce the limits.
        """
        self._refuse_other_topic(plan)
        self._limits()

    def write(self, plan: Plan, rows: RowSlice) -> None:
        """Hand records to the producer, which sends them.

        :raises OptionError: the records were published for another topic.
        :raises SchemaMismatch: a topic is missing.
        :raises TargetRefused: a topic refuses a record, perhaps a record of an earlier call.
        """
        self._refuse_other_topic(plan)
        if not self._open and not self._is_lost:
            self._is_lost = self._row is None or self._take_over() != self._row
            if not self._is_lost:
                self._begin()
        if self._is_lost:
            return
        try:
            self._send(rows)
        except BaseException:
            self._abort()  # otherwise a part of the slice would be committed
            raise

    def finish(self, expected: LedgerRow | None, new: LedgerRow) -> Outcome:
        """Add the ledger record to the window's transaction, and commit it."""
        if self._is_lost or expected != self._row:
            self._abort()
            return Outcome.CONFLICT
        if not self._open:  # a window without rows has no transaction yet
            if expected is None and not topics.exists(self._ledger.admin, self._ledger.topic):
                topics.create_ledger(self._ledger.admin, self._ledger.topic)
            if self._take_over() != expected:
                return Outcome.CONFLICT
            self._begin()
        outcome = self._commit(new)
        if outcome is Outcome.APPLIED:
            self._row = new
        return outcome

    def close(self) -> None:
        """Abort the open transaction, and disconnect. A second call has no effect."""
        self._abort()
        self._producer = None
        self._ledger.close()

    # --- transactions ---

    def _take_over(self) -> LedgerRow | None:
        """Fence the former producers of the query, and return the ledger row."""
        self._abort()
        if time.monotonic() - self._used_s > _IDLE_S:
            self._drop_producer()
        if self._producer is None:
            self._producer = transactional(self._options, self._query_id, self._limits(), TIMEOUT_S)
            self._used_s = time.monotonic()
        return self._ledger.read(TIMEOUT_S)

    def _limits(self) -> dict[str, Limits]:
        return topics.limits(self._ledger.admin, self._options.topics, self._ledger.topic)

    def _refuse_other_topic(self, plan: Plan) -> None:
        if plan.table != (here := self._options.topic):
            raise published_elsewhere(f"the topic {plan.table}", here, [f"topic={plan.table}"])

    def _begin(self) -> None:
        self._producer.begin_transaction()
        self._open = True

    def _commit(self, row: LedgerRow) -> Outcome:
        """Write the ledger record, and commit the open transaction.

        :returns: APPLIED; or UNKNOWN if the answer is lost.
        :raises Exception: nothing is committed.
        """
        self._open = False
        try:
            self._producer.produce(
                self._ledger.topic,
                key=self._query_id.encode(),
                value=msgspec.json.encode(row.cells),
                partition=0,
                on_delivery=self._not_delivered,
            )
            self._drain()
        except BaseException as error:
            try:
                self._raise_cause(error)
            finally:
                self._drop_producer()
            raise
        try:
            self._producer.commit_transaction(TIMEOUT_S)
        except KafkaException as error:
            aborted = error.args[0].txn_requires_abort()
            self._drop_producer()
            if aborted:
                raise
            logger.warning("the answer to a commit is lost: %s", error)
            return Outcome.UNKNOWN
        self._used_s = time.monotonic()
        return Outcome.APPLIED

    def _drain(self) -> None:
        """Wait until the brokers have acknowledged all records.

        :raises TargetRefused: a topic refuses a record.
        :raises TargetUnavailable: the producer is fenced, or the brokers do not answer in time.
        """
        with _explained_fencing(self._options.transaction_timeout_ms):
            pending = self._producer.flush(TIMEOUT_S)
        self._raise_failed()
        if pending:
            raise TargetUnavailable(
                f"The brokers have not acknowledged {pending} records within {TIMEOUT_S:.0f} s.",
                "Check the brokers. All records are written again.",
            )

    def _raise_cause(self, error: BaseException) -> None:
        """Raise the reason for which the client has put the transaction into an error state.

        The client reports the reason only to a commit, which then has no effect.

        :param error: the error of a record. Unless it reports an error state, nothing is raised.
        """
        if isinstance(error, KafkaException) and error.args[0].code() == KafkaError._STATE:  # noqa: SLF001
            try:
                self._producer.commit_transaction(TIMEOUT_S)
            except KafkaException as reason:
                raise reason from error

    def _abort(self) -> None:
        if not self._open:
            return
        self._open = False
        self._failed.clear()
        try:
            self._producer.abort_transaction(TIMEOUT_S)
        except KafkaException as error:
            logger.info(
                "the transaction could not be aborted; the next producer aborts it: %s", error
            )
            self._producer = None
        self._failed.clear()

    def _drop_producer(self) -> None:
        """Discard the producer. The next producer aborts the open transaction of this producer."""
        self._producer = None
        self._open = False
        self._failed.clear()

    def _send(self, rows: RowSlice) -> None:
        """Give the records of a slice to the producer.

        :raises TargetRefused: a topic refuses a record, perhaps a record of an earlier call.
        :raises TargetUnavailable: the producer is fenced.
        :raises KafkaException: client or brokers refuse a record for another reason.
        """
        produce, poll, not_delivered = (
            self._producer.produce,
            self._producer.poll,
            self._not_delivered,
        )
        with _explained_fencing(self._options.transaction_timeout_ms):
            for topic, key, value, headers, partition, ms in records(
                rows.batch, self._options.topic
            ):
                extra = {} if headers is None else {"headers": headers}
                while True:
                    try:
                        produce(topic, value, key, partition, not_delivered, timestamp=ms, **extra)
                        break
                    except BufferError:  # the queue is full
                        poll(_FULL_BUFFER_S)
                    except KafkaException as error:
                        # The cause may be an earlier record, whose error `poll` reports.
                        poll(_FULL_BUFFER_S)
                        self._raise_failed()
                        self._raise_cause(error)
                        raise _undelivered(error.args[0], topic, key) from error
            poll(0)
        self._raise_failed()

    def _not_delivered(self, error: KafkaError, record: Any) -> None:
        if error.code() not in _ABORTED:
            self._failed.append((error, record))

    def _raise_failed(self) -> None:
        """If a record was not delivered, abort the transaction and raise the record's error.

        :raises TargetRefused: a topic refuses the record.
        :raises KafkaException: any other error.
        """
        if not self._failed:
            return
        error, record = self._failed[0]
        self._abort()
        raise _undelivered(error, record.topic(), record.key())


def _undelivered(error: KafkaError, topic: str, key: bytes | None) -> Exception:
    """Return the exception for an undelivered record."""
    if error.code() not in REFUSED:
        unknown: Exception = KafkaException(error)
        return unknown
    return TargetRefused(
        f"The topic {topic} refuses the record with key={key!r}, or one of those that were sent together with"
        f" it: {error}",
        "If the topic was altered since the query started, set it back. Otherwise change the rule of the"
        " brokers that refuses the record. Or give the epoch up: `wal-sink give-up CHECKPOINT --epoch EPOCH`"
        " leaves its rows in the log.",
    )


def transactional(
    options: KafkaOptions, query_id: str, limits: Mapping[str, Limits], timeout_s: float
) -> Any:
    """Create a transactional producer, which fences the former producers of the query.

    :param limits: the limits of each topic of the records.
    :param timeout_s: the time-out of each request, in seconds.
    :raises OptionError: the brokers do not allow the transaction time-out of the options.
    :raises KafkaException: the brokers do not answer, or refuse for another reason.
    """
    largest = [limit.largest for limit in limits.values()]
    producer = Producer(
        {
            **options.client,
            **options.producer,
            "delivery.report.only.error": True,
            "transactional.id": f"wal_sink-{query_id}",
            "message.max.bytes": max(*largest, _SMALLEST_LIMIT),
            "batch.size": min(*largest, 1_000_000),
            "delivery.timeout.ms": min(120_000, options.transaction_timeout_ms),
        },
        logger=client_logger,
    )
    try:
        # An unconnected producer would look for its coordinator half a second later.
        producer.list_topics(next(iter(limits)), timeout_s)
        producer.init_transactions(timeout_s)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.INVALID_TRANSACTION_TIMEOUT:
            raise
        raise OptionError(
            f"Option kafka.transaction.timeout.ms is {options.transaction_timeout_ms}, and the brokers allow"
            " less.",
            "Lower it, or raise transaction.max.timeout.ms of the brokers, which is 900000 (15 minutes)"
            " unless it was changed.",
        ) from error
    return producer


@contextlib.contextmanager
def _explained_fencing(timeout_ms: int) -> Iterator[None]:
    """Convert the error of a fenced producer in this context.

    The client may call its callbacks while an error is set. Then Python wraps the error in a SystemError.

    :param timeout_ms: the milliseconds after which the brokers abort a transaction.
    :raises TargetUnavailable: the producer is fenced.
    :raises KafkaException: any other error of the client.
    """
    try:
        yield
    except (SystemError, KafkaException) as error:
        cause = error if isinstance(error, KafkaException) else error.__cause__ or error.__context__
        if not isinstance(cause, KafkaException):
            raise
        if cause.args[0].code() not in _FENCED:
            raise cause from error
        raise TargetUnavailable(
            "The brokers have fenced this producer: another flusher of the query writes, or this transaction"
            f" took longer than {timeout_ms} ms: {cause.args[0]}",
            "Without another flusher, raise kafka.transaction.timeout.ms. All records are written again.",
        ) from error
