"""`set-aside`: takes an epoch that cannot be flushed out of the line, and keeps what there is of it.

What is durable when
--------------------

1. Each object of the epoch is copied and the copy read back. Nothing refers to the copies: a command that
   dies here has changed nothing, and finds them when it is run again.
2. The decision is created, once: it names the copies with their digests. From here on every flusher passes
   over the epoch, and whoever had begun it finishes it without writing more.
3. The objects go from the log. A command that dies before leaves them to a second run, or to the flusher:
   it trims the epoch like any other, without comparing what was copied.

So at any instant each object is in the log or in the copy, and the decision is there before one is gone.
"""

from __future__ import annotations

import contextlib
import shutil
from typing import NamedTuple
from uuid import uuid4

from state_backends import StateBackend
from wal_sink.admin.decide import (
    GivenUp,
    offsets_digest,
    outcome,
    reason,
    refuse_changed,
    rows_of,
    situation,
)
from wal_sink.admin.ledger import ledger
from wal_sink.admin.live import refuse_flusher
from wal_sink.admin.query import Query, who
from wal_sink.errors import CorruptLog, OptionError
from wal_sink.model import paths
from wal_sink.model.records import Decision, FileCopy
from wal_sink.protocol.skip import Situation, refuse_nothing
from wal_sink.targets.base import Target
from wal_sink.wal.log import Log
from wal_sink.wal.segment import measure

_CHUNK = 1 << 20


class SettingAside(NamedTuple):
    """What `set_aside` is going to do; nothing is changed yet."""

    query: Query
    target: Target
    seen: Situation
    to: StateBackend
    files: tuple[str, ...]
    present: Decision | None
    """A decision that an interrupted command has left: only deleting remains."""
    begun: bool

    @property
    def consequences(self) -> str:
        """Say what the operator agrees to."""
        epoch = self.seen.epoch
        text = (
            f"Epoch {epoch} of query {self.query.query_id} will not be flushed. {len(self.files)} files of"
            f" it move from {self.query.log.url} to {self.to.url}; the epochs after it go on."
        )
        if self.seen.begun is not None:
            rows = self.seen.begun.rows
            text += f" It is begun: some of its {rows} rows are possibly in the table, and stay."
        return text


def plan_set_aside(
    query: Query, target: Target, epoch: int, to: StateBackend, now_us: int, *, begun: bool
) -> SettingAside:
    """Look whether the epoch can be set aside.

    :param to: where to; the files go there under the paths that they have in the log.
    :param begun: the operator knows that rows of it may be in the table.
    :raises OptionError: it is not the next epoch, nothing is there, or `to` is no place for it.
    :raises FlusherAtWork: a flusher is alive and has not stopped at an error.
    :raises WrongOwner, LedgerBehindLog, TargetUnavailable: see `giving_up`.
    """
    with ledger(target, query.owner(query.identity())) as row:
        seen = situation(query, row, epoch, begun=begun)
    present = query.log.decision(epoch)
    if present is not None and present.where != to.url:
        raise OptionError(
            f"Epoch {epoch} is given up already, by {present.by}: {present.verb} {present.where}",
            "Start the query, or a flusher; it passes over the epoch."
            if not present.where
            else f"To finish it, pass the place where its files are: --to {present.where}",
        )
    if present is None:
        refuse_nothing(seen)
    refuse_flusher(query.log, now_us, unless_stopped=True)
    _refuse_inside(query, to)
    manifests = tuple(paths.manifest(attempt) for attempt in seen.attempts)
    return SettingAside(query, target, seen, to, (*seen.segments, *manifests), present, begun)


def set_aside(plan: SettingAside, now_us: int, why: str = "") -> GivenUp:
    """Carry it out; can be repeated at any point.

    :raises CorruptLog: a copy cannot be read back as it was written; nothing was changed.
    :raises OptionError, FlusherAtWork: the epoch was flushed or changed meanwhile; nor was it then.
    """
    query, seen = plan.query, plan.seen
    files = () if plan.present else tuple(_copy(query.log, path, plan.to) for path in plan.files)
    if plan.present is None:
        with ledger(plan.target, query.owner(query.identity())) as row:
            refuse_changed(query, row, seen)
    decision = plan.present or query.log.create_decision(
        Decision(
            verb="set-aside",
            epoch=seen.epoch,
            by=who(),
            at_us=now_us,
            why=reason(query, seen.epoch, why),
            where=plan.to.url,
            files=files,
            generation=max((attempt.generation for attempt in seen.attempts), default=0),
            offsets_digest=offsets_digest(query, seen),
            rows=rows_of(query, seen),
            last_us=seen.begun.last_us if seen.begun else 0,
        )
    )
    if decision.where != plan.to.url:
        raise OptionError(
            f"Epoch {seen.epoch} was given up by {decision.by} meanwhile ({decision.verb})",
            f"What was copied to {plan.to.url} is not needed; the log is as {decision.by} left it.",
        )
    copied = {copy.path for copy in decision.files}
    query.log.delete(path for path in plan.files if path in copied)
    with ledger(plan.target, query.owner(query.identity())) as row:
        return outcome(query, decision, row.read())


def _refuse_inside(query: Query, to: StateBackend) -> None:
    """Refuse a place inside of the log or the checkpoint, also by another name of it.

    :raises OptionError: copies there would be trimmed, or deleted with the checkpoint.
    """
    for inside in (query.log.url, query.checkpoint.url):
        if f"{to.url}/".startswith(f"{inside}/"):
            raise OptionError(
                f"{to.url} is inside of {inside}",
                "Name a place outside of the checkpoint and of the log.",
            )
    marker = f"probe/{uuid4().hex}"
    to.create(marker, b"see whether the log has this file, too\n")
    try:
        if marker in query.log.backend.list("probe/"):
            raise OptionError(f"{to.url} is another name of {query.log.url}", "Name another place.")
    finally:
        to.delete([marker])


def _copy(log: Log, path: str, to: StateBackend) -> FileCopy:
    """Copy one object, unless that is done, and read the copy back.

    Of an empty file, as a crash can leave behind, there is nothing to copy, and no store holds one.
    """
    with contextlib.closing(log.backend.open_input(path)) as source:
        size, digest = measure(source)
    if not size:
        return FileCopy(path=path, bytes=size, digest=digest)
    with contextlib.suppress(FileExistsError), contextlib.ExitStack() as stack:
        source = stack.enter_context(contextlib.closing(log.backend.open_input(path)))
        output = stack.enter_context(to.open_output(path))
        shutil.copyfileobj(source, output, _CHUNK)
    with contextlib.closing(to.open_input(path)) as copy:
        found = measure(copy)
    if found != (size, digest):
        raise CorruptLog(
            f"{to.url}/{path} has other contents than {log.url}/{path}",
            "Name an empty place. Nothing was changed in the log.",
        )
    return FileCopy(path=path, bytes=size, digest=digest)
