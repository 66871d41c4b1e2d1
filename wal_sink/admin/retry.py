"""`quarantine --retry`: sends refused rows again, once what refused them is repaired (rule 24).

Each row is written with the timestamp that it has in its epoch, so it hides nothing that came later, and to
send it twice is the same write. An entry is released when its rows are acknowledged: a command that dies in
between is run again. What is refused again stays in quarantine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
import pyarrow as pa

from wal_sink.admin.query import Query, user_and_host
from wal_sink.counted import counted
from wal_sink.errors import CorruptLog, InvalidRow, OptionError, TargetRefused
from wal_sink.flush.target_connection import target_errors
from wal_sink.model.plan import Plan, several_plans_key
from wal_sink.targets.base import Delivery, Session, Slice, Target
from wal_sink.targets.refused import PassesOver
from wal_sink.wal.quarantine import Entry, entries, read_entry, release, runs
from wal_sink.wal.refused import plan_of, rows_of

_BY_HAND = (
    "Write them to a file, `wal-sink quarantine CHECKPOINT --export FILE`, and bring them in by the"
    " stream's source, or by hand. Then delete their files below quarantine/ in the log."
)


class Retried(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of `quarantine --retry`."""

    query_id: str
    target: str
    sent: int
    """Rows that the target has taken; they have left the quarantine."""
    left: int
    """Rows that it refuses still."""
    refused: tuple[str, ...]
    """Why it does, each reason once."""


class Retry(NamedTuple):
    """The change that `quarantine --retry` makes."""

    query: Query
    target: Target
    found: tuple[Entry, ...]

    @property
    def consequences(self) -> str:
        """Say what the operator agrees to."""
        rows = sum(len(entry.left) for entry in self.found)
        place = self.target.writes_to or self.target.name
        return (
            f"{counted(rows, 'row is', 'rows are')} sent to {place} as of their epochs: what was written or"
            " deleted since then stays, unless the table has forgotten the delete (gc_grace_seconds)."
            " What it takes leaves the quarantine."
        )

    def carry_out(self, now_us: int, why: str = "") -> Retried:  # noqa: ARG002 -- a note has no reason
        """Send the rows; can be repeated at any point.

        :raises SchemaMismatch, TargetUnavailable: see `Session.write`.
        """
        log, by = self.query.log, user_and_host()
        owner = self.query.owner(self.query.identity())
        refused: dict[str, None] = {}
        sent = left = 0
        with target_errors(self.target), self.target.connect(owner) as session:
            sender = _Sender(self.query, self.target, session)
            for entry in self.found:
                taken = sender.send(entry, refused)
                release(log, entry, taken, by, now_us)
                sent, left = sent + len(taken), left + len(entry.left) - len(taken)
        return Retried(
            query_id=self.query.query_id,
            target=log.target,
            sent=sent,
            left=left,
            refused=tuple(refused),
        )


class _Part(NamedTuple):
    """Consecutive rows that can be sent."""

    first: int
    number: int
    checked: pa.RecordBatch
    """As the session takes them; fewer, where the check has made one row of two with one key and event."""


class _Sender:
    """Sends the rows of entries over one session; keeps the plans, each of which asks the target once."""

    def __init__(self, query: Query, target: Target, session: Session) -> None:
        self._query = query
        self._target = target
        self._session = session
        self._plans: dict[str, Plan] = {}

    def send(self, entry: Entry, refused: dict[str, None]) -> list[int]:
        """Send the rows of an entry; return which of them are acknowledged, counted from 0, ascending.

        :param refused: gets the reasons why the target refuses others, as keys.
        :raises OptionError: see `_by_row`.
        :raises CorruptLog: the log has lost the plan by which they were checked.
        """
        table = read_entry(self._query.log, entry)
        (batch,) = table.combine_chunks().to_batches()
        again: set[int] = set()

        def stays(us: int, error: TargetRefused) -> None:
            again.add(us - entry.first_us)
            refused[error.what] = None

        if isinstance(self._session, PassesOver):
            self._session.pass_over(stays)
        written: list[int] = []
        rows, key = rows_of(batch), plan_of(table.schema)
        for first, number in runs(entry.left):
            for part, plan in self._parts(rows.slice(first, number), key, refused):
                begin = first + part.first
                self._session.write(plan, Slice(entry.epoch, part.checked, entry.first_us + begin))
                written += range(begin, begin + part.number)
        self._session.drain()
        return [row for row in written if row not in again]

    def _parts(
        self, rows: pa.RecordBatch, key: str, refused: dict[str, None]
    ) -> Iterator[tuple[_Part, Plan]]:
        """Yield the rows that can be sent, with the plan to write them by.

        What the flush met was checked by the plan of its epoch; what the tasks have refused is checked by a
        plan that is made now, for the table may have been altered. Such a row does not say which plan its
        epoch has; so where a plan of the log takes rows in their order alone, it may be one of those, though
        the options are others by now: written by itself, it would replace a total.
        """
        log = self._query.log
        if key and not log.several:
            plan = log.plan(key)
            if plan is None:
                raise CorruptLog(
                    f"{log.url} has no plan {key}, by which rows in quarantine were checked",
                    "Restore plans/ from a copy of the log; or export the rows, and write them by hand.",
                )
            yield _Part(0, rows.num_rows, rows), _by_row(plan)
            return
        for each in log.plans():
            _by_row(each)
        plan = _by_row(self._plan(rows.schema))
        for part in _checked(self._target, plan, rows, 0, refused):
            yield part, plan

    def _plan(self, schema: pa.Schema) -> Plan:
        there: Mapping[str, tuple[str, Mapping[str, str]]] = {
            self._query.log.target: (self._target.name, self._target.shape)
        }
        key = several_plans_key(schema, there)
        if key not in self._plans:
            self._plans[key] = self._target.plan(schema, key)
        return self._plans[key]


def _checked(
    target: Target, plan: Plan, rows: pa.RecordBatch, first: int, refused: dict[str, None]
) -> Iterator[_Part]:
    """Yield the rows that the target's check takes.

    :param first: the place of the first row in its run.
    :param refused: gets why others are refused, as keys.
    """
    try:
        yield _Part(first, rows.num_rows, target.check(rows, plan))
    except InvalidRow as error:
        if rows.num_rows == 1:
            refused[error.what] = None
            return
        middle = rows.num_rows // 2
        yield from _checked(target, plan, rows.slice(0, middle), first, refused)
        yield from _checked(target, plan, rows.slice(middle), first + middle, refused)


def _by_row(plan: Plan) -> Plan:
    """Return a plan by which the target takes each row by itself.

    :raises OptionError: it takes them in their order alone, such as what is added to totals; or would double
        a row that is sent again after a lost answer.
    """
    if plan.sent_once:
        raise OptionError(
            f"{plan.table} has lists that are not frozen: a row that is sent again after a lost answer would"
            " have their elements twice.",
            _BY_HAND,
        )
    if plan.one_session:
        raise OptionError(
            f"Rows of {plan.table} are written in their order alone, within their window, such as those that"
            " are added to totals, or of which the first one stays: one that is sent afterwards is too late.",
            _BY_HAND,
        )
    return plan


def plan_retry(query: Query, target: Target) -> Retry:
    """See that refused rows can be sent again.

    :raises OptionError: the target adds rows, so that one that is sent twice would be there twice.
    """
    if target.delivery is not Delivery.CELLS:
        raise OptionError(
            f"Target {target.name} adds rows: one that is sent again after a lost answer would be there"
            " twice.",
            _BY_HAND,
        )
    return Retry(query, target, tuple(entries(query.log)))
