"""The session of the Kafka target: the records of a window and its ledger record, in one transaction.

A producer whose `transactional.id` belongs to the query fences those before it: whatever they had open is
aborted, and they can commit nothing more. So what this session reads of the ledger after `init_transactions`
stays true until it commits, or is fenced itself: that is its conditional update.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException, Producer

from wal_sink.errors import TargetUnavailable
from wal_sink.model.ledger import Mark, Outcome, Owner, Window
from wal_sink.model.plan import Plan
from wal_sink.targets.base import Session, Slice
from wal_sink.targets.elsewhere import published_elsewhere
from wal_sink.targets.kafka.ledger import LedgerReader, to_bytes
from wal_sink.targets.kafka.options import KafkaOptions
from wal_sink.targets.kafka.records import records
from wal_sink.targets.kafka.topics import largest_bytes

logger = logging.getLogger(__name__)

TIMEOUT_S = 30.0
"""After which an answer counts as lost."""

_PATIENCE_S = 3.0
"""How long a reader waits for an open transaction before it takes its flusher for dead."""

_FULL_S = 0.2
_FENCED = {
    KafkaError._FENCED,  # noqa: SLF001 -- its public name
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
}
_ABORTED = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}  # noqa: SLF001 -- their public names


class KafkaSession(Session):
    """One flusher's producer, made when it first writes: to read the ledger fences no one."""

    def __init__(self, options: KafkaOptions, owner: Owner) -> None:
        self._options = options
        self._owner = owner
        self._ledger = LedgerReader(options.client, options.ledger_topic, owner.query_id, TIMEOUT_S)
        self._producer: Any = None
        self._window: Window | None = None
        """Whose records the open transaction holds; None: no transaction is open."""
        self._failed: list[KafkaError] = []

    def read_ledger(self) -> Mark | None:
        """Read the ledger topic to its end; end a dead flusher's transaction if it holds that up."""
        if self._producer is not None:
            return self._ledger.read(TIMEOUT_S)
        try:
            return self._ledger.read(_PATIENCE_S)
        except TargetUnavailable as error:
            logger.info("%s; it is ended now", error.what)
            self._producer = self._made()
            return self._ledger.read(TIMEOUT_S)

    def create(self, flushed: int) -> None:
        """Write the first record, unless there is one."""
        self.replace_row(None, Mark.new(self._owner, flushed))

    def begin(self, window: Window) -> Outcome:
        """Write a ledger record, in a transaction of its own."""
        mark = self._alone()
        if mark is None or mark.flushed != window.first - 1 or mark.begun is not None:
            return Outcome.REFUSED
        return self._commit(msgspec.structs.replace(mark, begun=window))

    def start(self, window: Window) -> None:
        """Open the window's transaction."""
        self._alone()
        self._producer.begin_transaction()
        self._window = window

    def compare(self, plan: Plan) -> None:
        """Compare the name of the topic, which has no columns that could have changed."""
        if plan.table != (here := self._options.topic):
            raise published_elsewhere(f"the topic {plan.table}", here, [f"topic={plan.table}"])

    def write(self, plan: Plan, rows: Slice) -> None:
        """Hand records to the producer, which sends them.

        :raises OptionError: they were published for another topic.
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

    def finish(self, window: Window) -> Outcome:
        """Add the ledger record to the window's transaction, and commit it."""
        if self._window != window:
            self._forget()
            return Outcome.REFUSED
        mark = self.read_ledger()
        if mark is None or mark.flushed != window.first - 1 or mark.begun != window:
            self._forget()
            return Outcome.REFUSED
        return self._commit(mark.finished(window))

    def replace_row(self, seen: Mark | None, new: Mark) -> Outcome:
        """Write a ledger record, in a transaction of its own, after the one that was seen."""
        if self._alone() != seen:
            return Outcome.REFUSED
        return self._commit(new)

    def close(self) -> None:
        """Abort what is open, and disconnect. Idempotent."""
        self._forget()
        self._producer = None
        self._ledger.close()

    # --- transactions ---

    def _alone(self) -> Mark | None:
        """Become the only one that writes for this query, with nothing open; return the mark since then."""
        self._forget()
        if self._producer is None:
            self._producer = self._made()
        return self._ledger.read(TIMEOUT_S)

    def _made(self) -> Any:
        """Make the producer: those before it are fenced, and what they had open is aborted."""
        largest = largest_bytes(self._options)
        producer = Producer(
            {
                **self._options.client,
                **self._options.producer,
                "delivery.report.only.error": True,
                "transactional.id": f"wal_sink-{self._owner.query_id}",
                "message.max.bytes": largest,
                "batch.size": min(largest, 1_000_000),
                "delivery.timeout.ms": min(120_000, self._options.transaction_timeout_ms),
            },
            logger=logger,
        )
        producer.init_transactions(TIMEOUT_S)
        return producer

    def _commit(self, new: Mark) -> Outcome:
        """Write a ledger record, and commit the open transaction, or one of its own.

        :raises KafkaException: it certainly had no effect.
        """
        if self._window is None:
            self._producer.begin_transaction()
        self._window = None
        try:
            self._producer.produce(
                self._options.ledger_topic,
                key=self._owner.query_id.encode(),
                value=to_bytes(new),
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
            logger.info("could not abort, which the next producer does: %s", error)
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
        produce, poll, topic = self._producer.produce, self._producer.poll, self._options.topic
        not_delivered = self._not_delivered
        for key, value, headers, partition in records(rows.batch):
            while True:
                try:
                    if headers is None:
                        produce(topic, value, key, partition, not_delivered)
                    else:
                        produce(topic, value, key, partition, not_delivered, headers=headers)
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
