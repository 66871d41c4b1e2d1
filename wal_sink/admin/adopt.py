"""`adopt`: says that checkpoint, log and ledger row belong together, after one of them was moved (rule 1).

The checkpoint names its log, the log its checkpoint, the ledger row a log id and a checkpoint. First the
command records what it changes; then it replaces the ledger row, `log.json` and the checkpoint's file. As
long as one of the three is missing, every flusher and publisher stops with `WrongOwner`:
docs/protocol/operators.md#why-adopt-looks-for-the-original.

Before that it looks for the original, where the old names lead. Only a place that answers and does not have
it counts as gone. One that cannot be read (no permission, no answer, no credentials) may have it; then the
operator's word is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Literal, NamedTuple

import msgspec

from state_backends import StateBackend, StateBackendError
from wal_sink.admin.flusher_at_work import refuse_flusher
from wal_sink.admin.ledger import open_ledger
from wal_sink.admin.query import Query, user_and_host
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import (
    CheckpointNotVisible,
    CorruptLog,
    LogUnavailable,
    OptionError,
    WrongOwner,
)
from wal_sink.model import paths
from wal_sink.model.ledger import LedgerState
from wal_sink.model.records import Intervention, LogIdentity
from wal_sink.targets.base import Target
from wal_sink.wal.log import Log


class Sight(Enum):
    """What can be seen at an old place, as the end of a sentence."""

    GONE = "nothing is there, as seen from this host"
    ANOTHER = "another query has its own there"
    THERE = "it is still there"
    UNKNOWN = "it cannot be read from here"


class Original(NamedTuple):
    """An old place of a checkpoint, or of a log, and what was seen there."""

    kind: Literal["checkpoint", "log"]
    url: str
    sight: Sight
    why: str = ""
    """The store's error, when it cannot be read."""

    def __str__(self) -> str:
        why = f" ({self.why})" if self.why else ""
        return f"{self.kind} {self.url}: {self.sight.value}{why}"


def look_for_checkpoint(url: str, query: Query) -> Original:
    """Look whether the query's checkpoint is still there."""

    def look(backend: StateBackend) -> Sight:
        backend.read("metadata")  # FileNotFoundError: the only sign that it is gone
        try:
            found = Checkpoint(backend).query_id()
        except CheckpointNotVisible:
            return Sight.THERE  # whatever it is, it is there
        return Sight.THERE if found == query.query_id else Sight.ANOTHER

    return Original("checkpoint", url, *_sight(url, query, look))


def look_for_log(url: str, query: Query, log_id: str) -> Original:
    """Look whether the log is still there, or as much of it as could hold epochs."""

    def look(backend: StateBackend) -> Sight:
        log = Log(backend)
        try:
            identity = log.identity()
        except CorruptLog:
            return Sight.THERE  # whatever it is, it is there
        if identity is None:
            left = log.attempts() or log.flushed_epochs()
            return Sight.THERE if left else Sight.GONE
        return Sight.THERE if identity.log_id == log_id else Sight.ANOTHER

    return Original("log", url, *_sight(url, query, look))


def _sight(url: str, query: Query, look: Callable[[StateBackend], Sight]) -> tuple[Sight, str]:
    try:
        return look(query.open(url)), ""
    except FileNotFoundError:
        return Sight.GONE, ""
    except StateBackendError as error:
        return Sight.UNKNOWN, str(error)
    except OSError as error:
        return Sight.UNKNOWN, repr(error)


def refuse_copy(original: Original, query: Query, *, is_gone: bool) -> None:
    """Refuse to adopt a copy while its original is, or may be, still there.

    :param is_gone: the operator knows that what cannot be read is gone.
    :raises WrongOwner: the original is there, whatever the operator knows.
    :raises LogUnavailable: it cannot be told, and the operator did not say.
    """
    if original.sight is Sight.THERE and original.kind == "checkpoint":
        raise WrongOwner(
            f"The checkpoint of query {query.query_id} is still at {original.url}:"
            f" {query.checkpoint.url} is a copy",
            "Two owners would flush into one table. Start the copy with a new checkpoint; or, if it is"
            " to take over, stop the original and move it away first. Renaming it is enough.",
        )
    if original.sight is Sight.THERE:
        raise WrongOwner(
            f"The log is still at {original.url}: {query.log.url} is a copy",
            "Epochs may have been published there since. Use that one, or move it away first.",
        )
    if original.sight is Sight.UNKNOWN and not is_gone:
        raise LogUnavailable(
            f"The {original.kind} of query {query.query_id} was at {original.url}, and it cannot be"
            f" seen from here whether it still is: {original.why}",
            "Make that place readable from here, and run the command again: the original may live on"
            " there. If you know that it is gone for good, pass --original-is-gone.",
        )


class Adopted(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of `adopt`."""

    query_id: str
    record: str
    """URL of the record."""
    before: dict[str, str]
    after: dict[str, str]


class Adoption(NamedTuple):
    """The change that `adopt` makes."""

    query: Query
    target: Target
    noted: str | None
    """The log that the checkpoint names."""
    old: LogIdentity
    row: LedgerState | None
    originals: tuple[Original, ...] = ()
    """The places to which the old names lead, and what was seen there."""

    @property
    def new(self) -> LogIdentity:
        """What `log.json` will say."""
        return msgspec.structs.replace(self.old, checkpoint=self.query.checkpoint.url)

    @property
    def new_row(self) -> LedgerState | None:
        """What the ledger row will say; a row that is not there is not made."""
        return self.row and msgspec.structs.replace(
            self.row, log_id=self.new.log_id, checkpoint=self.new.checkpoint
        )

    @property
    def consequences(self) -> str:
        """Say what the operator agrees to."""
        changes = "\n".join(
            f"  {name}: {was} -> {self.after[name]}"
            for name, was in self.before.items()
            if was != self.after[name]
        )
        looked = "".join(f"\n  {original}" for original in self.originals)
        return (
            f"{self.query.log.url} and the ledger row of query {self.query.query_id} will belong to the"
            f" checkpoint {self.query.checkpoint.url}:\n{changes}\n"
            + (f"Of the original is known:{looked}\n" if looked else "")
            + "Their owner so far can no longer flush. If this is a copy and the original lives on,"
            " answer no."
        )

    @property
    def before(self) -> dict[str, str]:
        """The places that checkpoint, log and ledger row name now."""
        return _names(self.noted or "", self.old.checkpoint, self.row)

    @property
    def after(self) -> dict[str, str]:
        """The places that they will name."""
        return _names(self.query.log.url, self.new.checkpoint, self.new_row)

    def carry_out(self, now_us: int, why: str = "") -> Adopted:
        """Write the new names; can be repeated at any point.

        :raises FlusherAtWork: the ledger row was moved since it was read; only the record was written.
        """
        query = self.query
        unseen = [f"said to be gone: {o}" for o in self.originals if o.sight is Sight.UNKNOWN]
        record = query.log.record_intervention(
            Intervention(
                verb="adopt",
                by=user_and_host(),
                at_us=now_us,
                why="; ".join(filter(None, [why, *unseen])),
                before=self.before,
                after=self.after,
            )
        )
        if self.row is not None and self.new_row is not None and self.row != self.new_row:
            with open_ledger(self.target, query.owner(self.new)) as ledger:
                ledger.replace(self.row, self.new_row)
        if self.old != self.new:
            query.log.replace_identity(self.new)
        if self.noted != query.log.url:
            query.checkpoint.replace_log_url(query.log.url)
        return Adopted(
            query_id=query.query_id,
            record=query.log.url_of(record),
            before=self.before,
            after=self.after,
        )


def plan_adopt(
    query: Query,
    target: Target,
    now_us: int,
    *,
    original_is_gone: bool = False,
) -> Adoption:
    """Read which places checkpoint, log and ledger row name, and refuse to adopt a copy.

    :param original_is_gone: the operator knows that an original that cannot be read is gone for good.
    :raises WrongOwner: the original is still there.
    :raises LogUnavailable: it cannot be seen whether it is.
    :raises OptionError: nothing is to be changed, or nothing was ever published.
    :raises FlusherAtWork: a flusher is alive and has not stopped at an error.
    :raises TargetUnavailable: the ledger cannot be read.
    """
    noted = query.checkpoint.log_url()
    old = query.log.identity()
    if old is None:
        raise OptionError(
            f"{query.log.url} has no log.json: nothing is published there, or it is lost",
            "Restore log.json from a copy; if the log is elsewhere, pass --wal.",
        )
    owner = query.owner(old)._replace(checkpoint=query.checkpoint.url)
    with open_ledger(target, owner) as ledger:
        row = ledger.read()
    plan = Adoption(query, target, noted, old, row)
    if plan.before == plan.after:
        raise OptionError(
            f"{query.checkpoint.url}, its log and its ledger row belong together",
            "There is nothing to adopt.",
        )
    refuse_flusher(query.log, now_us, unless_stopped=True, patience=query.patience)
    plan = plan._replace(originals=_originals(plan))
    for original in plan.originals:
        refuse_copy(original, query, is_gone=original_is_gone)
    return plan


def _names(noted: str, checkpoint: str, row: LedgerState | None) -> dict[str, str]:
    names = {Checkpoint.LOG_URL: noted, paths.LOG: checkpoint}
    if row is not None:
        names |= {"ledger.log_id": row.log_id, "ledger.checkpoint": row.checkpoint}
    return names


def _originals(plan: Adoption) -> tuple[Original, ...]:
    """Look for checkpoint and log at the places that the old names give."""
    query = plan.query
    checkpoints = {plan.old.checkpoint, plan.row.checkpoint if plan.row else ""}
    found = [
        look_for_checkpoint(url, query) for url in sorted(checkpoints - {query.checkpoint.url, ""})
    ]
    if plan.noted not in (None, query.log.url):
        found.append(look_for_log(str(plan.noted), query, plan.old.log_id))
    return tuple(found)
