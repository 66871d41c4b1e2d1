"""`trim`: deletes what is flushed and still in the log, as a flusher does when it starts (rules 17, 18)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from wal_sink.admin.ledger_row import ledger_row
from wal_sink.admin.query import Query
from wal_sink.clock import now_us
from wal_sink.protocol.next_step import next_step, refuse_missing_records
from wal_sink.protocol.steps import RecordsBehind, View
from wal_sink.targets.base import Target
from wal_sink.wal.trim import left_over, sweep
from wal_sink.wal.trim import trim as trim_log
from wal_sink.wal.trim_delay import TrimDelay


class TrimFile(msgspec.Struct, frozen=True, kw_only=True):
    """An object of the log."""

    path: str
    """In the log."""
    bytes: int


class Trimmed(msgspec.Struct, frozen=True, kw_only=True):
    """What went, or would go."""

    query_id: str
    log: str
    flushed: int
    """As the log says; -1 for none."""
    dry_run: bool
    files: tuple[TrimFile, ...]
    bytes: int
    half_written: int | None
    """Files that killed writers left, a day ago or more; None: not known before they go."""


class TrimPlan(NamedTuple):
    """What goes."""

    query: Query
    flushed: int
    epochs: tuple[int, ...]
    files: tuple[TrimFile, ...]
    delay: TrimDelay

    @property
    def consequences(self) -> str:
        """What the operator agrees to, as sentences."""
        size = sum(file.bytes for file in self.files)
        return (
            f"{len(self.files):,} objects of {size:,} bytes go from {self.query.log.url}. Every epoch up to"
            f" {self.flushed} is in the target. Files that writers left half written more than a day ago"
            " go, too."
        )

    def outcome(self, half_written: int | None) -> Trimmed:
        """Return the command's document; `half_written` is None when nothing was deleted."""
        return Trimmed(
            query_id=self.query.query_id,
            log=self.query.log.url,
            flushed=self.flushed,
            dry_run=half_written is None,
            files=self.files,
            bytes=sum(file.bytes for file in self.files),
            half_written=half_written,
        )


def plan_trim(
    query: Query,
    delay_s: float = 0.0,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> TrimPlan:
    """List what goes, with its sizes. Changes nothing, and never connects.

    :param delay_s: seconds that a flushed epoch stays.
    :param progress: told of how many objects of how many the size is known.
    :raises Diverged: a manifest of a flushed epoch has another history; nothing goes.
    """
    found = left_over(query.log, delay := TrimDelay(delay_s, now_us))
    files = []
    for path in found.paths:
        try:
            files.append(TrimFile(path=path, bytes=query.log.backend.size(path)))
        except FileNotFoundError:
            continue  # a flusher was faster
        finally:
            progress(len(files), len(found.paths))
    flushed = max(query.log.flushed_epochs(), default=-1)
    return TrimPlan(query, flushed, found.epochs, tuple(files), delay)


def trim(plan: TrimPlan, target: Target) -> Trimmed:
    """Delete it, once the ledger is found to agree: `rewind` may need what is there.

    :raises TargetUnavailable: it cannot be asked.
    :raises LedgerBehindLog, WrongOwner, CorruptLog: at which a flusher stops, too.
    """
    if plan.files:
        _refuse_disagreement(plan.query, target)
    trim_log(plan.query.log, plan.epochs)
    log = plan.query.log
    return plan.outcome(sweep(log, plan.delay.trimmable(log, log.newest_flushed(), log.attempts())))


def _refuse_disagreement(query: Query, target: Target) -> None:
    """Look as a flusher does (rule 9)."""
    checkpointed = query.checkpoint.last_commit()
    recorded = query.log.newest_flushed()
    owner = query.owner(identity := query.identity())
    with ledger_row(target, owner) as row:
        mark = row.read()
    view = View(checkpointed, recorded, identity, True, mark, query.log.attempts())
    if isinstance(step := next_step(view, owner), RecordsBehind):
        refuse_missing_records(step.window, query.log.newest_flushed())
