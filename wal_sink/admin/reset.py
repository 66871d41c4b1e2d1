"""`reset`: deletes checkpoint and log of a query, so that the next start is a new query.

Rows in the target stay, and so does the ledger row, which names a query id that no start will have again.

The order makes it safe to die in the middle, and to run again. First Spark's files go, but for the query id:
from then on no epoch counts as checkpointed. Then the log goes, then the rest.
"""

from __future__ import annotations

import shutil

import msgspec

from wal_sink.admin.query import PATIENCE, Patience, Query, refuse_flusher
from wal_sink.checkpoint.checkpoint import local_folder
from wal_sink.errors import NotDrained
from wal_sink.progress.status import Status, byte_count, read_status
from wal_sink.text import counted

IDENTITY = "metadata"
"""Spark's file with the query id, by which the log is found."""

LOCATION = "wal_sink/"
"""Where the checkpoint names its log, and has it by default."""


class Reset(msgspec.Struct, frozen=True, kw_only=True):
    """What was deleted: the command's JSON document."""

    query_id: str
    checkpoint: str
    log: str
    objects: int
    discarded_epochs: int
    discarded_rows: int


class ResetPlan:
    """A reset that may be carried out.

    :param found: how far the query is.
    """

    def __init__(self, query: Query, found: Status) -> None:
        self._query = query
        self._found = found

    @property
    def consequences(self) -> str:
        """What the operator agrees to."""
        lost = (
            f" {_unflushed(self._found)} that are not in the target are lost."
            if self._found.pending_epochs
            else ""
        )
        if self._found.quarantined_rows:
            lost += f" {counted(self._found.quarantined_rows, 'row')} in quarantine are lost."
        return (
            f"The checkpoint {self._found.checkpoint} and the log {self._found.log} are deleted.{lost} The"
            " rows in the target stay. The next start is a new query: it reads its source from the beginning."
        )

    def carry_out(self, now_us: int, why: str = "") -> Reset:  # noqa: ARG002 -- the log that would keep it goes
        """Delete both."""
        checkpoint, log = self._query.open(self._query.checkpoint.url), self._query.log.backend
        files = checkpoint.list()
        kept = {name for name in files if name == IDENTITY or name.startswith(LOCATION)}
        checkpoint.delete(name for name in files if name not in kept)
        objects = log.list()
        log.delete(objects)
        left = [name for name in checkpoint.list() if name != IDENTITY]
        checkpoint.delete([*left, IDENTITY])
        for url in (log.url, checkpoint.url):
            if (folder := local_folder(url)) is not None:
                shutil.rmtree(folder, ignore_errors=True)  # empty folders, and Hadoop's checksums
        return Reset(
            query_id=self._query.query_id,
            checkpoint=checkpoint.url,
            log=log.url,
            objects=len({*files, *objects}),
            discarded_epochs=self._found.pending_epochs,
            discarded_rows=self._found.pending_rows,
        )


def plan_reset(
    query: Query, now_us: int, *, discard_unflushed: bool = False, patience: Patience = PATIENCE
) -> ResetPlan:
    """Plan the reset of a query that is stopped.

    :param now_us: microseconds since 1970.
    :param discard_unflushed: the operator gives up what only the log has.
    :raises FlusherAtWork: a flusher is alive.
    :raises NotDrained: only the log has some rows, and the operator did not give them up.
    """
    for each in [query] if not query.log.several else query.each("", detached=True):
        refuse_flusher(each.log, now_us, unless_stopped=False, patience=patience)
    found = read_status(query.checkpoint, query.log)
    if not found.safe_to_delete and not discard_unflushed:
        raise NotDrained(
            f"Checkpoint and log of query {query.query_id} cannot be deleted: {found.unsafe_because}",
            "Run `wal-sink flush CHECKPOINT` before. Or add --discard-unflushed, if these rows are not"
            " wanted.",
        )
    return ResetPlan(query, found)


def _unflushed(found: Status) -> str:
    epochs = counted(found.pending_epochs, "epoch")
    return f"{epochs} with {counted(found.pending_rows, 'row')} ({byte_count(found.pending_bytes)})"
