"""The session of the Kafka target: the records of a window and its ledger record, in one transaction.

A producer whose `transactional.id` belongs to the query fences those before it: their open transactions are
aborted, and they can commit nothing more. So the ledger that this session reads after `init_transactions` is
current until it commits, or is fenced itself: that is its conditional update.

A record that a topic refuses makes its whole transaction fail. So a session asks what the topics take before
it sends, and leaves out what an altered topic would refuse (rule 24).
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from wal_sink.errors import (
    InvalidRow,
    OptionError,
    SchemaMismatch,
    TargetRefused,
    TargetUnavailable,
)
from wal_sink.model.ledger import LedgerState, Outcome, Owner, PassedRow, Window
from wal_sink.model.plan import Plan
from wal_sink.targets.base import OnRefused, Slice, TransactionalSession
from wal_sink.targets.kafka import topics
from wal_sink.targets.kafka.ledger import LedgerReader
from wal_sink.targets.kafka.options import KafkaOptions
from wal_sink.targets.kafka.records import Limits, planned_limits, records, refuse
from wal_sink.targets.refusals import WindowRefusals, is_sent, refusal
from wal_sink.targets.registry import published_elsewhere

logger = logging.getLogger(__name__)

TIMEOUT_S = 30.0
"""After which an answer counts as lost."""

_OPEN_TRANSACTION_S = 3.0
"""How long a reader waits for an open transaction before it aborts it."""

_FULL_BUFFER_S = 0.2
_SMALLEST_LIMIT = 1_000
"""Of librdkafka for the size of messages."""
_FENCED = {
    KafkaError._FENCED,  # noqa: SLF001 -- its public name
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
}
_ABORTED = {
    KafkaError._PURGE_QUEUE,  # noqa: SLF001 -- their public names
    KafkaError._PURGE_INFLIGHT,  # noqa: SLF001
    KafkaError._INVALID_DIFFERENT_RECORD,  # noqa: SLF001
}
"""Errors of records that were not sent because another one was refused."""
_REFUSED = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
}

_RESENDS = "-resend"
"""Ends the name of a producer that sends rows of the quarantine: it fences others like it, and no flusher."""


class KafkaSession(TransactionalSession):
    """One flusher's producer, made when it first writes: to read the ledger fences no one."""

    def __init__(self, options: KafkaOptions, owner: Owner) -> None:
        self._options = options
        self._owner = owner
        self._ledger = LedgerReader(options, owner.query_id, TIMEOUT_S)
        self._limits: dict[str, Limits] | None = None
        """What each topic takes, asked once."""
        self._producer: Any = None
        self._suffix = ""
        """Of the producer's name."""
        self._open = False
        """Whether it has a transaction open."""
        self._window: Window | None = None
        """Whose records that transaction holds."""
        self._refusals = WindowRefusals()
        self._failed: list[tuple[KafkaError, Any]] = []
        """Records that were not delivered."""

    def read_ledger(self) -> LedgerState | None:
        """Read the ledger topic to its end; abort an open transaction of the query that blocks this."""
        if self._producer is not None:
            return self._ledger.read(TIMEOUT_S)
        try:
            return self._ledger.read(_OPEN_TRANSACTION_S)
        except TargetUnavailable as error:
            query_id, of_row, _ = self._ledger.held_by.decode(errors="replace").partition(" ")
            if query_id != self._owner.query_id:
                raise
            logger.info("%s. That transaction is ended now", error.what)
            return self._take_over(_RESENDS if of_row else "")

    def start(self, window: Window) -> None:
        """Open the window's transaction."""
        self._take_over()
        self._begin()
        self._window, self._refusals = window, WindowRefusals()

    def pass_over(self, refused: OnRefused | None, passed: Sequence[PassedRow] = ()) -> None:
        """Leave out records that a topic refuses, and note them, also those left out already."""
        self._refusals = WindowRefusals(refused, passed)

    def compare(self, plan: Plan) -> None:
        """Compare the name of the topic, and see that both topics are still there and serve.

        Whether records fit into lower limits of the topic is checked when they are sent.
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
        :raises SchemaMismatch: the topic was altered, and takes none of them any more.
        :raises TargetRefused: a topic refuses one, also of an earlier call.
        :raises TargetUnavailable: the topic was altered meanwhile; or no transaction is open any more: the
            window is written again from `start`.
        """
        if self._window is None:
            raise TargetUnavailable(
                f"The transaction with the records of epoch {rows.epoch} has ended by an error",
                "Nothing: all of them are written again.",
            )
        try:
            self.compare(plan)
            if self._topic_limits() == planned_limits(plan):
                self._send(rows)
            else:
                confirm = self._refuse_old_limits
                self._refusals.find(plan, rows, self._window, self._send_unless_refused, confirm)
        except BaseException:
            self._abort()  # a part of the rows must not be committed
            raise

    def drain(self) -> None:
        """Wait until the brokers have all records.

        :raises TargetRefused, TargetUnavailable: see `write`; or the brokers take too long.
        """
        if self._producer is None:
            return
        try:
            with _explained_fencing(self._options.transaction_timeout_ms):
                left = self._producer.flush(TIMEOUT_S)
            self._raise_failed()
        except BaseException:
            self._abort()
            raise
        if left:
            raise TargetUnavailable(
                f"The brokers have not acknowledged {left} records within {TIMEOUT_S:.0f} s",
                "See to the brokers; all records are written again.",
            )

    def commit(self, seen: LedgerState, new: LedgerState) -> Outcome:
        """Add the ledger record to the window's transaction, with a note of each row left out; commit it."""
        if self._window is None or self._window != seen.begun or self.read_ledger() != seen:
            self._abort()
            return Outcome.CONFLICT
        owner = self._owner
        notes = {_note_key(owner, row): row.note(owner) for row in self._refusals.passed}
        return self._commit({owner.query_id: new, **notes})

    def resend(self, plan: Plan, rows: Slice, seen: LedgerState, *, noted: bool) -> bool:
        """Send a row of the quarantine, in one transaction with its note.

        :raises TargetRefused: a topic refuses it; or its note is lost.
        :raises TargetUnavailable: another command sends rows, or has made the ledger row; or the answer is
            lost.
        """
        row = PassedRow(rows.epoch, rows.first_us)
        if self._take_over(_RESENDS) != seen:
            return False
        key, sent = _note_key(self._owner, row), row.note(self._owner, sent=True)
        if is_sent(row, self._ledger.last(key), sent, noted=noted):
            return True
        self.compare(plan)
        self._begin()
        try:
            if (error := self._send_unless_refused(rows)) is not None:
                raise refusal(plan, rows, None, error) from error
        except BaseException:
            self._abort()
            raise
        if self._commit({key: sent}) is not Outcome.APPLIED:
            raise TargetUnavailable(
                f"It is not known whether a row of epoch {row.epoch} was sent",
                "Run the command again: the ledger has a note of it, and the row comes once.",
            )
        return True

    def compare_and_set(self, seen: LedgerState | None, new: LedgerState) -> Outcome:
        """Write a ledger record, in a transaction of its own, after the one that was seen."""
        if seen is None and not topics.is_there(self._ledger.admin, self._ledger.topic):
            topics.create_ledger(self._ledger.admin, self._ledger.topic)
        if self._take_over() != seen:
            return Outcome.CONFLICT
        self._begin()
        outcome = self._commit({self._owner.query_id: new})
        if new.begun is None:
            # A command may let epochs be flushed again: one that is about to send their rows sends none.
            self._producer_of(_RESENDS)
        return outcome

    def close(self) -> None:
        """Abort what is open, and disconnect. Idempotent."""
        self._abort()
        self._producer = None
        self._ledger.close()

    # --- transactions ---

    def _take_over(self, suffix: str = "") -> LedgerState | None:
        """Fence earlier producers of this name, and abort what they had open; return the ledger row.

        :param suffix: of the producer's name.
        """
        self._abort()
        if self._producer is None or self._suffix != suffix:
            self._producer, self._suffix = self._producer_of(suffix), suffix
        return self._ledger.read(TIMEOUT_S)

    def _producer_of(self, suffix: str) -> Any:
        name, limits = f"{self._owner.query_id}{suffix}", self._topic_limits()
        return transactional(self._options, name, limits, TIMEOUT_S)

    def _topic_limits(self) -> dict[str, Limits]:
        if self._limits is None:
            self._limits = self._asked_limits()
        return self._limits

    def _asked_limits(self) -> dict[str, Limits]:
        return topics.limits(self._ledger.admin, self._options.topics, self._ledger.topic)

    def _refuse_old_limits(self) -> None:
        """Check that the topics have the limits of when this session began, before a record is refused.

        :raises TargetUnavailable: they do not; the window is written again by the new ones.
        """
        if self._asked_limits() == self._limits:
            return
        self._abort()
        self._limits = self._producer = None  # which is made by the limits
        raise TargetUnavailable(
            f"The topic {self._options.topic} was altered while its records were written",
            "Nothing: all of them are written again.",
        )

    def _begin(self) -> None:
        self._producer.begin_transaction()
        self._open = True

    def _commit(self, records: Mapping[str, LedgerState]) -> Outcome:
        """Write ledger records, by their keys, and commit the open transaction.

        :raises Exception: it certainly had no effect.
        """
        self._window, self._open = None, False
        try:
            for key, record in records.items():
                self._producer.produce(
                    self._ledger.topic,
                    key=key.encode(),
                    value=record.to_json(),
                    partition=0,
                    on_delivery=self._not_delivered,
                )
            self.drain()
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
        return Outcome.APPLIED

    def _raise_cause(self, error: BaseException) -> None:
        """Raise why a transaction takes no record: only a commit returns that, and it commits nothing."""
        if isinstance(error, KafkaException) and error.args[0].code() == KafkaError._STATE:  # noqa: SLF001
            try:
                self._producer.commit_transaction(TIMEOUT_S)
            except KafkaException as reason:
                raise reason from error

    def _abort(self) -> None:
        """Abort what is open."""
        if not self._open:
            return
        self._window, self._open = None, False
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
        """Drop the producer; the next one aborts what it may have left open."""
        self._producer = self._window = None
        self._open = False
        self._failed.clear()

    def _send_unless_refused(self, rows: Slice) -> Exception | None:
        """Send records; return why a topic would refuse one, with none of them sent."""
        try:
            refuse(rows.batch, self._topic_limits(), time.time_ns() // 1_000_000, "")
        except InvalidRow as error:
            return error
        self._send(rows)
        return None

    def _send(self, rows: Slice) -> None:
        """Hand a slice's records to the producer.

        :raises TargetRefused, TargetUnavailable: see `write`; also for an earlier call.
        :raises KafkaException: the client, or a broker, does not take them.
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
                more = {} if headers is None else {"headers": headers}
                while True:
                    try:
                        produce(topic, value, key, partition, not_delivered, timestamp=ms, **more)
                        break
                    except BufferError:  # as many are on their way as fit
                        poll(_FULL_BUFFER_S)
                    except KafkaException as error:  # none after a refusal, which it reports later
                        poll(_FULL_BUFFER_S)
                        self._raise_failed()
                        self._raise_cause(error)
                        raise
            poll(0)
        self._raise_failed()

    def _not_delivered(self, error: KafkaError, record: Any) -> None:
        if error.code() not in _ABORTED:
            self._failed.append((error, record))

    def _raise_failed(self) -> None:
        """Raise the error of a record: the transaction cannot be committed any more.

        :raises TargetRefused, TargetUnavailable: see `write`.
        :raises KafkaException: any other error.
        """
        if not self._failed:
            return
        error, record = self._failed[0]
        self._abort()
        if error.code() not in _REFUSED:
            raise KafkaException(error)
        self._refuse_old_limits()
        raise TargetRefused(
            f"The topic {record.topic()} refuses the record with key={record.key()!r}, or one of those that"
            f" were sent together with it: {error}",
            "Change in the topic, or the brokers, what refuses it.",
        )


def _note_key(owner: Owner, row: PassedRow) -> str:
    """Return the key of the record that says what became of a row; it begins with the query's own."""
    return f"{owner.query_id} {row.epoch} {row.us}"


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
        # Once connected, it asks for its coordinator at once; else half a second later.
        producer.list_topics(next(iter(limits)), timeout_s)
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
        f"The topic {topic} was altered, and refuses all records that wait for it: {problem}",
        "Set back its cleanup.policy until these are flushed; the flush goes on by itself. Or leave their"
        " epoch out, by wal-sink skip, which keeps the rows in a file.",
    )


@contextlib.contextmanager
def _explained_fencing(timeout_ms: int) -> Iterator[None]:
    """Explain the error of a fenced producer; raise another fatal error of the client as it is.

    The client calls our callbacks with a fatal error set, and Python wraps that in a SystemError.

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
