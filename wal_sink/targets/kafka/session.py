"""The session of the Kafka target: the records of a window and its ledger record, in one transaction.

A producer whose `transactional.id` belongs to the query fences those before it: whatever they had open is
aborted, and they can commit nothing more. So what this session reads of the ledger after
`init_transactions` stays true until it commits, or is fenced itself: that is its conditional update.

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
from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from wal_sink.errors import InvalidRow, OptionError, SchemaMismatch, TargetUnavailable
from wal_sink.model.ledger import LedgerState, Outcome, Owner, Window
from wal_sink.model.plan import Plan
from wal_sink.targets.base import Slice, TransactionalSession
from wal_sink.targets.kafka import topics
from wal_sink.targets.kafka.options import KafkaOptions
from wal_sink.targets.kafka.records import Limits, planned_limits, records, refuse
from wal_sink.targets.registry import published_elsewhere

logger = logging.getLogger(__name__)

_POLL_S = 0.1
_END = KafkaError._PARTITION_EOF  # noqa: SLF001 -- its public name
_SILENT = KafkaError(KafkaError._TIMED_OUT, "the ledger's records do not come")  # noqa: SLF001 -- as above


class LedgerReader:
    """Reads one query's mark, from where it read last.

    :param timeout_s: for each request.
    """

    def __init__(self, options: KafkaOptions, query_id: str, timeout_s: float) -> None:
        self.topic = options.ledger_of(query_id)
        self.admin = topics.admin_of(options)
        self.held_by = b""
        """The query whose open transaction the last `read` waited for in vain."""
        self._client = options.client
        self._place = TopicPartition(self.topic, 0, 0)
        self._query_id = query_id.encode()
        self._timeout_s = timeout_s
        self._consumer = self._made("read_committed")
        self._there = False
        """Whether the topic is known to be there, and the consumer reads it."""
        self._upto = 0
        """Everything before this offset is read."""
        self._row: bytes | None = None

    def read(self, patience_s: float) -> LedgerState | None:
        """Read all that is in the topic when this is called; None when there is no record of the query.

        :param patience_s: how long a transaction that is open may hold this up.
        :raises KafkaException: no answer.
        :raises TargetUnavailable: a transaction is open for longer.
        :raises SchemaMismatch: the topic is missing, and may not be created.
        :raises CorruptLog: the record is not one that this version wrote.
        """
        if (end := self._end()) is None:
            return None
        if end < self._upto:  # the topic was made anew, or cut: what was read of it counts no more
            self._begin()
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
                if message.key() == self._query_id:
                    self._row = message.value()
            elif error.code() == _END:
                at_open = True  # unless it is the end
                self._upto = max(self._upto, message.offset())
            else:
                raise KafkaException(error)
        if self._row is None:
            return None
        where = f"query {self._query_id.decode()} in the topic {self.topic}"
        return LedgerState.from_json(self._row, where)

    def close(self) -> None:
        """Disconnect. Idempotent."""
        self._consumer.close()

    def _end(self) -> int | None:
        """Return the offset after the last record of the topic, committed or not; None: there is no topic."""
        if not self._there:
            if not topics.is_there(self.admin, self.topic):
                topics.create_ledger(self.admin, self.topic, dry=True)  # raises if it may be there
                self._row = None
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
        self._there, self._upto, self._row = True, 0, None
        self._consumer.assign([self._place])

    def _held_up(self, patience_s: float) -> TargetUnavailable:
        """Return the error that says whose open transaction is in the way; its records begin at `_upto`."""
        with contextlib.closing(self._made("read_uncommitted")) as consumer:
            consumer.assign([TopicPartition(self.topic, 0, self._upto)])
            message = consumer.poll(self._timeout_s)
        found = None if message is None or message.error() else message.key()
        self.held_by = found or b""
        of = (
            f"query {found.decode(errors='replace')}" if found else "a program that is none of ours"
        )
        return TargetUnavailable(
            f"The ledger's topic {self.topic} cannot be read to its end for {patience_s:.0f} s: a transaction"
            f" of {of} is open there. Its flusher has died, or stands still",
            "Start that query again, which ends the transaction; or wait: the broker ends it after the"
            " kafka.transaction.timeout.ms of that query."
            + (
                ""
                if self.held_by == self._query_id
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
            },
            logger=logger,
        )


TIMEOUT_S = 30.0
"""After which an answer counts as lost."""

_PATIENCE_S = 3.0
"""How long a reader waits for an open transaction before it takes its flusher for dead."""

_FULL_S = 0.2
_SMALLEST_LIMIT = 1_000
"""Of librdkafka for the size of messages."""
_FENCED = {
    KafkaError._FENCED,  # noqa: SLF001 -- its public name
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
}
_ABORTED = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}  # noqa: SLF001 -- their public names


class KafkaSession(TransactionalSession):
    """One flusher's producer, made when it first writes: to read the ledger fences no one."""

    def __init__(self, options: KafkaOptions, owner: Owner) -> None:
        self._options = options
        self._owner = owner
        self._ledger = LedgerReader(options, owner.query_id, TIMEOUT_S)
        self._limits: dict[str, Limits] | None = None
        """What each topic takes, asked once."""
        self._producer: Any = None
        self._window: Window | None = None
        """Whose records the open transaction holds; None: no transaction is open."""
        self._failed: list[KafkaError] = []

    def read_ledger(self) -> LedgerState | None:
        """Read the ledger topic to its end; end a dead flusher's transaction if it holds that up."""
        if self._producer is not None:
            return self._ledger.read(TIMEOUT_S)
        try:
            return self._ledger.read(_PATIENCE_S)
        except TargetUnavailable as error:
            if self._ledger.held_by != self._owner.query_id.encode():
                raise
            logger.info("%s. That transaction is ended now", error.what)
            self._producer = self._made()
            return self._ledger.read(TIMEOUT_S)

    def start(self, window: Window) -> None:
        """Open the window's transaction."""
        self._alone()
        self._producer.begin_transaction()
        self._window = window

    def compare(self, plan: Plan) -> None:
        """Compare the name of the topic, and see that both topics are still there and serve.

        Where the topic takes less than it did, only the records say whether that matters.
        """
        if plan.table != (here := self._options.topic):
            raise published_elsewhere(f"the topic {plan.table}", here, [f"topic={plan.table}"])
        keyed = any(column.name == "key" for column in plan.columns)
        for topic, limits in self._topic_limits().items():
            if limits.compacted and not keyed:
                raise _altered(topic, "it is compacted now, and these records have no key")

    def write(self, plan: Plan, rows: Slice) -> None:
        """Hand records to the producer, which sends them.

        :raises OptionError: they were published for another topic.
        :raises SchemaMismatch: the topic was altered, and does not take them any more.
        :raises TargetUnavailable: no transaction is open any more; the window is written again from `start`.
        :raises KafkaException: the topic refuses a record of an earlier call.
        """
        if self._window is None:
            raise TargetUnavailable(
                f"The transaction with the records of epoch {rows.epoch} has ended by an error",
                "Nothing: all of them are written again.",
            )
        try:
            self.compare(plan)
            self._refuse_altered(plan, rows)
            with _explained(self._options.transaction_timeout_ms):
                self._send(rows)
        except BaseException:
            self._forget()  # a part of the rows must not be committed
            raise

    def drain(self) -> None:
        """Wait until the brokers have all records."""
        if self._producer is None:
            return
        with _explained(self._options.transaction_timeout_ms):
            left = self._producer.flush(TIMEOUT_S)
            self._raise_failed()
        if left:
            raise TargetUnavailable(
                f"The brokers have not acknowledged {left} records within {TIMEOUT_S:.0f} s",
                "See to the brokers; all records are written again.",
            )

    def commit(self, seen: LedgerState, new: LedgerState) -> Outcome:
        """Add the ledger record to the window's transaction, and commit it."""
        if self._window is None or self._window != seen.begun or self.read_ledger() != seen:
            self._forget()
            return Outcome.CONFLICT
        return self._commit(new)

    def compare_and_set(self, seen: LedgerState | None, new: LedgerState) -> Outcome:
        """Write a ledger record, in a transaction of its own, after the one that was seen."""
        if seen is None and not topics.is_there(self._ledger.admin, self._ledger.topic):
            topics.create_ledger(self._ledger.admin, self._ledger.topic)
        if self._alone() != seen:
            return Outcome.CONFLICT
        return self._commit(new)

    def close(self) -> None:
        """Abort what is open, and disconnect. Idempotent."""
        self._forget()
        self._producer = None
        self._ledger.close()

    # --- transactions ---

    def _alone(self) -> LedgerState | None:
        """Become the only one that writes for this query, with nothing open; return the mark since then."""
        self._forget()
        if self._producer is None:
            self._producer = self._made()
        return self._ledger.read(TIMEOUT_S)

    def _made(self) -> Any:
        """Make the producer: those before it are fenced, and what they had open is aborted."""
        limits = self._topic_limits()
        return transactional(self._options, self._owner.query_id, limits, TIMEOUT_S)

    def _topic_limits(self) -> dict[str, Limits]:
        if self._limits is None:
            self._limits = topics.limits(
                self._ledger.admin, self._options.topics, self._ledger.topic
            )
        return self._limits

    def _refuse_altered(self, plan: Plan, rows: Slice) -> None:
        """Refuse records that the topic took when they were published, and that it would refuse by now.

        :raises SchemaMismatch: there is one.
        """
        if (now := self._topic_limits()) == planned_limits(plan):
            return
        try:
            refuse(rows.batch, now, time.time_ns() // 1_000_000, "")
        except InvalidRow as error:
            raise _altered(self._options.topic, error.what) from error

    def _commit(self, new: LedgerState) -> Outcome:
        """Write a ledger record, and commit the open transaction, or one of its own.

        :raises KafkaException: it certainly had no effect.
        """
        if self._window is None:
            self._producer.begin_transaction()
        self._window = None
        try:
            self._producer.produce(
                self._ledger.topic,
                key=self._owner.query_id.encode(),
                value=new.to_json(),
                partition=0,
                on_delivery=self._not_delivered,
            )
            self.drain()
        except BaseException:
            self._drop()
            raise
        try:
            self._producer.commit_transaction(TIMEOUT_S)
        except KafkaException as error:
            aborted = error.args[0].txn_requires_abort()
            self._drop()
            if aborted:
                raise
            logger.warning("the answer to a commit is lost: %s", error)
            return Outcome.UNKNOWN
        return Outcome.APPLIED

    def _forget(self) -> None:
        """Abort what is open."""
        if self._window is None:
            return
        self._window = None
        self._failed.clear()
        try:
            self._producer.abort_transaction(TIMEOUT_S)
        except KafkaException as error:
            logger.info(
                "the transaction could not be aborted; the next producer aborts it: %s", error
            )
            self._producer = None
        self._failed.clear()

    def _drop(self) -> None:
        """Give the producer up: the next one ends what it may have left open."""
        self._producer = None
        self._window = None
        self._failed.clear()

    def _send(self, rows: Slice) -> None:
        """Hand a slice's records to the producer.

        :raises KafkaException: it refuses one, of this call or of an earlier one.
        """
        produce, poll, not_delivered = (
            self._producer.produce,
            self._producer.poll,
            self._not_delivered,
        )
        for topic, key, value, headers, partition, ms in records(rows.batch, self._options.topic):
            while True:
                try:
                    if headers is None:
                        produce(topic, value, key, partition, not_delivered, timestamp=ms)
                    else:
                        produce(
                            topic,
                            value,
                            key,
                            partition,
                            not_delivered,
                            timestamp=ms,
                            headers=headers,
                        )
                    break
                except BufferError:  # as many are on their way as fit
                    poll(_FULL_S)
        poll(0)
        self._raise_failed()

    def _not_delivered(self, error: KafkaError, _: object) -> None:
        if error.code() not in _ABORTED:
            self._failed.append(error)

    def _raise_failed(self) -> None:
        """Raise what a record met.

        :raises KafkaException: the transaction cannot be committed any more.
        """
        if self._failed:
            error = self._failed[0]
            self._forget()
            raise KafkaException(error)


def transactional(
    options: KafkaOptions, query_id: str, limits: Mapping[str, Limits], timeout_s: float
) -> Any:
    """Make the producer of a query, which is the only one from now on.

    :param limits: of each topic that records are written to.
    :raises OptionError: brokers do not allow a transaction to last as long.
    :raises KafkaException: no answer, or another refusal.
    """
    largest = [each.largest for each in limits.values()]
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
        logger=logger,
    )
    try:
        producer.init_transactions(timeout_s)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.INVALID_TRANSACTION_TIMEOUT:
            raise
        raise OptionError(
            f"kafka.transaction.timeout.ms is {options.transaction_timeout_ms}, and the brokers allow less.",
            "Lower it, or raise transaction.max.timeout.ms of the brokers, which is 900000 (15 minutes)"
            " unless it was changed.",
        ) from error
    return producer


def _altered(topic: str, problem: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"The topic {topic} was altered, and refuses records that wait for it: {problem}",
        "Set back its cleanup.policy, max.message.bytes or partitions until these are flushed; the flush"
        " goes on by itself. Or leave their epoch out, by wal-sink skip, which keeps the rows in a file.",
    )


@contextlib.contextmanager
def _explained(timeout_ms: int) -> Iterator[None]:
    """Say of a producer that was fenced what may have fenced it; raise the client's fatal error as it is.

    The client runs our callbacks with a fatal error already set, which Python then reports.

    :param timeout_ms: after which brokers end a transaction.
    :raises TargetUnavailable: the producer was fenced.
    :raises KafkaException: any other error.
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
