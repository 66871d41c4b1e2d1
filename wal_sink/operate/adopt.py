"""`adopt`: says that checkpoint, log and ledger row belong together, after one of them was moved (rule 1).

Who names whom: the checkpoint its log (`wal_sink/location.json`), the log its checkpoint (`log.json`), the
ledger row a log id and a checkpoint. After the checkpoint was moved with its log inside, all three name the
old place; after the log alone was moved, only the checkpoint does; after a log was deleted and made anew,
only the ledger row is another's.

A copy looks just like a move, but for the original: where any of the old names still leads to this query,
nothing is adopted, since two owners would flush into one table. Who has copied moves the original away
first; renaming it is enough. (An original that cannot be seen from here is the operator's word.)

What is durable when: first the record of what is about to change. Then the ledger row, by compare-and-set
from the state that was seen: of two who adopt one row one wins, and whoever owned it before stops with
`WrongOwner`. Then `log.json`, then the checkpoint's file, each replaced whole. As long as one of the three is
missing, every flusher and publisher still stops with `WrongOwner`, and the command can be run again.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from state_backends import StateBackendError
from wal_sink import layout
from wal_sink.checkpoint import Checkpoint
from wal_sink.errors import CheckpointNotVisible, CorruptLog, OptionError, WrongOwner
from wal_sink.log import Log
from wal_sink.operate.ledger import ledger
from wal_sink.operate.live import refuse_flusher
from wal_sink.operate.query import Query, who
from wal_sink.records import Intervention, LogIdentity
from wal_sink.targets.base import Mark, Owner, Target


class Adopted(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of `adopt`."""

    query_id: str
    record: str
    """URL of the record."""
    before: dict[str, str]
    after: dict[str, str]


class Adopting(NamedTuple):
    """What `adopt` is going to do; nothing is changed yet."""

    query: Query
    target: Target
    noted: str | None
    """The log that the checkpoint names."""
    old: LogIdentity
    mark: Mark | None

    @property
    def new(self) -> LogIdentity:
        """What `log.json` will say."""
        return msgspec.structs.replace(self.old, checkpoint=self.query.checkpoint.url)

    @property
    def new_mark(self) -> Mark | None:
        """What the ledger row will say; a row that is not there is not made."""
        return self.mark and msgspec.structs.replace(
            self.mark, log_id=self.new.log_id, checkpoint=self.new.checkpoint
        )

    @property
    def consequences(self) -> str:
        """Say what the operator agrees to."""
        changes = "\n".join(
            f"  {name}: {was} -> {self.after[name]}"
            for name, was in self.before.items()
            if was != self.after[name]
        )
        return (
            f"{self.query.log.url} and the ledger row of query {self.query.query_id} will belong to the"
            f" checkpoint {self.query.checkpoint.url}:\n{changes}\nWhoever owned them before can no longer"
            " flush. If this is a copy and the original lives on, answer no."
        )

    @property
    def before(self) -> dict[str, str]:
        """Who names whom now."""
        return _names(self.noted or "", self.old.checkpoint, self.mark)

    @property
    def after(self) -> dict[str, str]:
        """Who will name whom."""
        return _names(self.query.log.url, self.new.checkpoint, self.new_mark)


def plan_adopt(query: Query, target: Target, now_us: int) -> Adopting:
    """Look who names whom.

    :raises WrongOwner: the original is still there.
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
    with ledger(target, Owner(query.query_id, old.log_id, query.checkpoint.url)) as row:
        mark = row.read()
    plan = Adopting(query, target, noted, old, mark)
    if plan.before == plan.after:
        raise OptionError(
            f"{query.checkpoint.url}, its log and its ledger row belong together",
            "There is nothing to adopt.",
        )
    refuse_flusher(query.log, now_us, unless_stopped=True)
    _refuse_copy(plan)
    return plan


def adopt(plan: Adopting, now_us: int, why: str = "") -> Adopted:
    """Carry it out; can be repeated at any point.

    :raises FlusherAtWork: the ledger row was moved since it was read; only the record was written.
    """
    query = plan.query
    record = query.log.record_intervention(
        Intervention(
            verb="adopt", by=who(), at_us=now_us, why=why, before=plan.before, after=plan.after
        )
    )
    if plan.mark is not None and plan.new_mark is not None and plan.mark != plan.new_mark:
        with ledger(plan.target, query.owner(plan.new)) as row:
            row.replace(plan.mark, plan.new_mark)
    if plan.old != plan.new:
        query.log.replace_identity(plan.new)
    if plan.noted != query.log.url:
        query.checkpoint.replace_log_url(query.log.url)
    return Adopted(
        query_id=query.query_id,
        record=f"{query.log.url}/{record}",
        before=plan.before,
        after=plan.after,
    )


def _names(noted: str, checkpoint: str, mark: Mark | None) -> dict[str, str]:
    names = {Checkpoint.LOG_URL: noted, layout.LOG: checkpoint}
    if mark is not None:
        names |= {"ledger.log_id": mark.log_id, "ledger.checkpoint": mark.checkpoint}
    return names


def _refuse_copy(plan: Adopting) -> None:
    """See that no old name leads to this query any more.

    :raises WrongOwner: one does.
    """
    query = plan.query
    checkpoints = {plan.old.checkpoint, plan.mark.checkpoint if plan.mark else ""}
    for url in sorted(checkpoints - {query.checkpoint.url, ""}):
        if _is_checkpoint(url, query):
            raise WrongOwner(
                f"The checkpoint of query {query.query_id} is still at {url}: {query.checkpoint.url} is a"
                " copy",
                "Two owners would flush into one table. Start the copy with a new checkpoint; or, if it is"
                " to take over, stop the original and move it away first. Renaming it is enough.",
            )
    if plan.noted not in (None, query.log.url) and _is_log(str(plan.noted), plan):
        raise WrongOwner(
            f"The log is still at {plan.noted}: {query.log.url} is a copy",
            "Epochs may have been published there since. Use that one, or move it away first.",
        )


def _is_checkpoint(url: str, query: Query) -> bool:
    try:
        return Checkpoint(query.open(url)).query_id() == query.query_id
    except (CheckpointNotVisible, StateBackendError, OSError):
        return False


def _is_log(url: str, plan: Adopting) -> bool:
    try:
        identity = Log(plan.query.open(url)).identity()
    except CorruptLog:
        return True  # whatever it is, it is there
    except (StateBackendError, OSError):
        return False
    return identity is not None and identity.log_id == plan.old.log_id
