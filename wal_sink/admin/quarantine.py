"""`quarantine`: lists refused rows, exports them to a file, or sends them again (rule 24).

`--retry` writes each row with the timestamp that it has in its epoch, so it hides nothing that came later,
and to send it twice is the same write. An entry is released when its rows are acknowledged: a command that
dies in between is run again. What is refused again stays in quarantine.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from wal_sink.admin.query import Query, user_and_host
from wal_sink.errors import CorruptLog, InvalidRow, OptionError, TargetRefused
from wal_sink.flush.connection import drained, target_errors
from wal_sink.model.ledger import BegunEpoch, LedgerState
from wal_sink.model.plan import Plan, several_plans_key
from wal_sink.model.records import FlushedEpoch
from wal_sink.targets.arrow_values import refuse_invalid_utf8
from wal_sink.targets.base import Delivery, Session, Slice, Target, TransactionalSession
from wal_sink.text import counted
from wal_sink.wal.log import Log
from wal_sink.wal.quarantine import Entry, Listing, entries, read_entry, release, runs
from wal_sink.wal.segment import ROW, TEXTS, plan_key_of, rows_of

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
        how = (
            "added, each once; where it has keys, a row whose key has one by now stays in quarantine, and one"
            " whose key was deleted since comes back"
            if self.target.resends
            else "sent as of their epochs: what was written or deleted since then stays, unless the table has"
            " forgotten the delete (gc_grace_seconds)"
        )
        sent = f"{counted(rows, 'row is', 'rows are')} for {place}: {how}."
        return f"{sent} What it takes leaves the quarantine."

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
                taken, stays = sender.send(entry, refused)
                release(log, entry, taken, by, now_us)
                sent, left = sent + len(taken), left + stays
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


class _Standing:
    """What ledger row and log say of entries; it holds as long as the row is this one (rule 24).

    An epoch that is flushed again, after a `rewind`, moves the row before it keeps its refused
    rows again. The entries of before may be listed still.
    """

    def __init__(self, log: Log, row: LedgerState | None) -> None:
        self._log = log
        self._row = row
        self._listing = Listing(log)
        last = row.last.epochs if row is not None and row.last is not None else ()
        self._flushed: dict[int, BegunEpoch | FlushedEpoch | None] = {b.epoch: b for b in last}

    def row_for(self, entry: Entry, number: int) -> LedgerState | None:
        """Return the ledger row under which a row is to be sent; None: it has left the quarantine.

        :raises TargetRefused: its epoch is not flushed; or it was flushed again since.
        """
        epoch = entry.name.epoch
        if self._row is None or self._row.flushed < epoch:
            raise TargetRefused(
                f"Epoch {epoch} is not flushed", "Send its rows when it is flushed."
            )
        if not self._listing.has(entry.name, number):
            return None
        if epoch not in self._flushed:
            self._flushed[epoch] = self._log.flushed(epoch)
        flushed = self._flushed[epoch]
        if flushed is not None and self._listing.is_older(entry.name, flushed):
            raise TargetRefused(
                f"Epoch {epoch} was flushed again since its row was refused, so the table has the row, or"
                " another entry does",
                "Nothing: the flusher deletes this entry within an hour.",
            )
        return self._row


class _Sender:
    """Sends the rows of entries over one session; keeps the plans, each of which asks the target once."""

    def __init__(self, query: Query, target: Target, session: Session) -> None:
        self._query = query
        self._target = target
        self._session = session
        self._plans: dict[str, Plan] = {}
        self._standing: _Standing | None = None

    def send(self, entry: Entry, refused: dict[str, None]) -> tuple[list[int], int]:
        """Send the rows of an entry.

        :param refused: gets the reasons why the target refuses some, as keys.
        :return: which of them are acknowledged, counted from 0, ascending; and how many are refused.
        :raises OptionError: see `_by_row`.
        :raises CorruptLog: the log has lost the plan by which they were checked.
        """
        table = read_entry(self._query.log, entry)
        if table is None:  # by another command
            return [], 0
        (batch,) = table.combine_chunks().to_batches()
        if isinstance(self._session, TransactionalSession):
            return self._resend(self._session, entry, batch, plan_key_of(table.schema), refused)
        again: set[int] = set()

        def stays(us: int, error: TargetRefused) -> None:
            again.add(us - entry.name.us)
            refused[error.what] = None

        self._session.pass_over(stays)
        written: list[int] = []
        rows, key = rows_of(batch), plan_key_of(table.schema)
        for first, number in runs(entry.left):
            for part, plan in self._parts(rows.slice(first, number), key, refused):
                begin = first + part.first
                self._session.write(
                    plan, Slice(entry.name.epoch, part.checked, entry.name.us + begin)
                )
                written += range(begin, begin + part.number)
        drained(self._session)
        taken = [row for row in written if row not in again]
        return taken, len(entry.left) - len(taken)

    def _resend(
        self,
        session: TransactionalSession,
        entry: Entry,
        batch: pa.RecordBatch,
        key: str,
        refused: dict[str, None],
    ) -> tuple[list[int], int]:
        """Send rows to a target that adds them, each in a transaction that notes it.

        :param key: of the plan by which rows were checked that the flush has met; empty where a task did.
        """
        became: dict[int, Literal["added", "gone", "refused"]] = {}
        rows = rows_of(batch)
        for row in entry.left:
            became[row] = "refused"
            for part, plan in self._parts(rows.slice(row, 1), key, refused):
                one = Slice(entry.name.epoch, part.checked, entry.name.us + row)
                became[row] = self._add(session, entry, plan, one, refused, noted=bool(key))
        added = [row for row, what in became.items() if what == "added"]
        return added, sum(what == "refused" for what in became.values())

    def _add(
        self,
        session: TransactionalSession,
        entry: Entry,
        plan: Plan,
        one: Slice,
        refused: dict[str, None],
        *,
        noted: bool,
    ) -> Literal["added", "gone", "refused"]:
        """Add a row, unless it has left the quarantine meanwhile."""
        while True:
            if self._standing is None:
                self._standing = _Standing(self._query.log, session.read_ledger())
            try:
                seen = self._standing.row_for(entry, one.first_us - entry.name.us)
                if seen is None:
                    return "gone"
                if session.resend(plan, one, seen, noted=noted):
                    return "added"
            except TargetRefused as error:
                refused[error.what] = None
                return "refused"
            self._standing = None

    def _parts(
        self, rows: pa.RecordBatch, key: str, refused: dict[str, None]
    ) -> Iterator[tuple[_Part, Plan]]:
        """Yield the rows that can be sent, with the plan to write them by.

        What the flush met was checked by the plan of its epoch; what the tasks have refused is checked by a
        plan that is made now, for the table may have been altered. Such a row does not say which plan its
        epoch has, so no plan of the log may be one whose rows are sent once.
        """
        log = self._query.log
        if key and not log.targets:
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
    """Yield the rows that the target's check takes, as in a task.

    :param first: the place of the first row in its run.
    :param refused: gets why others are refused, as keys.
    """
    try:
        refuse_invalid_utf8(rows)
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

    :raises OptionError: it would double a row that is sent again after a lost answer.
    """
    if plan.sent_once:
        raise OptionError(
            f"{plan.table} has lists that are not frozen: a row that is sent again after a lost answer would"
            " have their elements twice.",
            _BY_HAND,
        )
    return plan


def plan_retry(query: Query, target: Target) -> Retry:
    """Check that refused rows can be sent again.

    :raises OptionError: the target adds rows, so that one that is sent twice would be there twice.
    """
    if target.delivery is not Delivery.IDEMPOTENT and not target.resends:
        raise OptionError(
            f"Target {target.name} adds rows: one that is sent again after a lost answer would be there"
            " twice.",
            _BY_HAND,
        )
    return Retry(query, target, tuple(entries(query.log)))


def json_value(value: pa.Scalar) -> Any:
    r"""Return what `msgspec.json.encode` writes of a value; None for null.

    Bytes become base64 and decimals texts. A text that is not UTF-8 keeps its bytes, as `\xff`; a date that
    Python has not is the text that Arrow makes of it. A map is a list of pairs, as its keys may be of any
    type.
    """
    if not value.is_valid:
        return None
    kind = value.type
    if pt.is_struct(kind):
        return {field.name: json_value(value[field.name]) for field in kind}
    if pt.is_map(kind):
        return [[json_value(entry["key"]), json_value(entry["value"])] for entry in value.values]
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return [json_value(each) for each in value.values]
    return _of_scalar(value)


def _of_scalar(value: pa.Scalar) -> Any:
    if pt.is_string(value.type) or pt.is_large_string(value.type):
        return bytes(value.as_buffer()).decode("utf-8", errors="backslashreplace")
    try:
        return value.as_py()
    except (ValueError, OverflowError):  # a date or time that Python has not
        return str(value.cast(pa.string()).as_py())


_LINES = (".jsonl", ".ndjson", ".json")
_PARQUET = ".parquet"


class RefusedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one epoch that are refused for one reason."""

    epoch: int
    rows: int
    kind: str
    """The error: `InvalidRow`, by a task; `TargetRefused`, in the flush."""
    refused_by: str
    """Name of the one of several targets that refuses them; empty for the only one."""
    column: str
    """Empty where no single one is to blame."""
    reason: str
    remedy: str


class Quarantined(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `quarantine`."""

    query_id: str
    target: str
    log: str
    rows: int
    groups: tuple[RefusedGroup, ...]


class RefusedRow(NamedTuple):
    """One row in quarantine."""

    entry: Entry
    number: int
    """In its entry, from 0."""
    texts: tuple[str, ...]
    """As `wal.segment.TEXTS` names them."""
    row: pa.Scalar


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `quarantine --export`."""

    query_id: str
    file: str
    rows: int


def list_quarantine(query: Query) -> Quarantined:
    """Group what is in quarantine by epoch and reason.

    :raises CorruptLog: an entry cannot be read.
    """
    groups = Counter((row.entry.name.epoch, row.texts) for row in read_quarantine(query))
    return Quarantined(
        query_id=query.query_id,
        target=query.log.target,
        log=query.log.url,
        rows=groups.total(),
        groups=tuple(
            RefusedGroup(epoch=epoch, rows=rows, **_reason(texts))
            for (epoch, texts), rows in groups.items()
        ),
    )


def read_quarantine(query: Query) -> Iterator[RefusedRow]:
    """Yield the rows in quarantine, in the order of their write timestamps; memory: one entry."""
    for entry in entries(query.log):
        found = read_entry(query.log, entry)
        if found is None:
            continue
        texts = [found.column(name).to_pylist() for name in TEXTS]
        rows = found.column(ROW)
        for number in entry.left:
            yield RefusedRow(entry, number, tuple(text[number] for text in texts), rows[number])


def export(queries: Sequence[Query], file: str) -> Exported:
    """Write the rows in quarantine to a file, JSON lines or Parquet by its suffix; they stay in quarantine.

    :param queries: one query, as each of its targets sees it.
    :raises OptionError: the suffix is another one, or the file exists or cannot be written.
    """
    path = Path(file)
    if path.suffix.lower() not in (*_LINES, _PARQUET):
        raise OptionError(
            f"--export {file} is no file of a known kind.",
            f"End its name with {_PARQUET} for Parquet, or with {_LINES[0]} for JSON lines.",
        )
    lines = [_line(query, row) for query in queries for row in read_quarantine(query)]
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with contextlib.ExitStack() as stack:
            stack.callback(part.unlink, missing_ok=True)
            if path.suffix.lower() == _PARQUET:
                pq.write_table(_table(lines), part)
            else:
                encode = msgspec.json.Encoder().encode_lines
                part.write_bytes(encode(lines))
            os.link(part, path)  # atomic, and replaces nothing
    except FileExistsError:
        raise OptionError(f"--export {file} exists.", "Name a file that does not.") from None
    except OSError as error:
        raise OptionError(
            f"--export {file} cannot be written: {error.strerror or error}.",
            "Name a file in an existing folder with free space, to which this user may write.",
        ) from error
    return Exported(query_id=queries[0].query_id, file=str(path.absolute()), rows=len(lines))


def _reason(texts: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(_REASON, texts, strict=True))


def _line(query: Query, row: RefusedRow) -> dict[str, Any]:
    return {
        "epoch": row.entry.name.epoch,
        "target": query.log.target,
        "timestamp_us": row.entry.name.us + row.number,
        **_reason(row.texts),
        "row": json_value(row.row),
    }


_REASON = ("kind", "refused_by", "column", "reason", "remedy")
"""What the documents call the texts of a row, in the order of `wal.segment.TEXTS`."""

_SCHEMA = pa.schema(
    [
        ("epoch", pa.int64()),
        ("target", pa.string()),
        ("timestamp_us", pa.int64()),
        *((name, pa.string()) for name in _REASON),
        ("row", pa.string()),
    ]
)


def _table(lines: Sequence[dict[str, Any]]) -> pa.Table:
    """Return the lines as columns; the row is JSON, since those of different epochs may differ in type."""
    rows = [line | {"row": msgspec.json.encode(line["row"]).decode()} for line in lines]
    return pa.Table.from_pylist(rows, _SCHEMA)
