"""`reset`: deletes checkpoint and log of a query, so that the next start is a new query.

Rows in the target stay, and so does the ledger row, which names a query id that no start will have again.
What is not the query's own stays too: foreign files, and the logs of other queries.

It may die at any instant, and the same command goes on. Each step begins when the one before it is durable:

1. `wal_sink/location.json` names the log. It does in any case, but for a query that was never tied to it.
2. Spark's `metadata` goes. Before, nothing has changed. From here on no start has the query's id: Spark
   makes another one, and rule 1 refuses it with `WrongOwner`, since the checkpoint names the log of the old
   id. That start leaves its own `metadata`; so a reset takes the id from `location.json`.
3. Spark's other files go. A flusher cannot come back: it finds no `metadata`, or another id.
4. The manifests go. What is pending only becomes less: as the records of what is flushed are still there, a
   log that was flushed looks flushed, and the same flags are enough.
5. The rest of the log goes. Without manifests nothing is pending, whatever else is there.
6. `metadata` goes again, which a start may have left, then `location.json`. The next start is a new query.

Nothing is deleted because of an old look: `carry_out` looks again, after the operator's yes. While it deletes
a large log, somebody may take it for dead, run it again, and start the query. So it looks whose log the
checkpoint names before it deletes from the checkpoint.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import NamedTuple

import msgspec

from wal_sink.admin.flusher_at_work import refuse_flusher
from wal_sink.admin.query import Query
from wal_sink.checkpoint.checkpoint import Checkpoint, local_folder
from wal_sink.errors import NotDrained, abandoned_log, flush_published
from wal_sink.model import paths
from wal_sink.progress.status import Status, byte_count, read_status
from wal_sink.text import counted
from wal_sink.wal.location import LOG_FOLDER, Location, abandoned_logs, owned

SPARK_FOLDERS = ("offsets", "commits", "state", "sources", "sinks")
"""What Spark has in a checkpoint, beside `metadata`."""


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """What was deleted: the command's JSON document."""

    query_id: str
    checkpoint: str
    log: str
    objects: int
    discarded_epochs: int
    discarded_rows: int


class Reset(NamedTuple):
    """The change that `reset` makes."""

    query: Query
    found: Status
    """How far the query is, as the operator is asked about it."""
    discard_unflushed: bool = False
    """The operator gives up what only the log has."""

    @property
    def consequences(self) -> str:
        """What the operator agrees to."""
        lost = (
            f" {_unflushed(self.found)} that are not in the target will be lost."
            if self.found.pending_epochs
            else ""
        )
        if self.found.quarantined_rows:
            lost += f" {counted(self.found.quarantined_rows, 'row')} in quarantine will be lost."
        return (
            f"The checkpoint {self.found.checkpoint} and the log {self.found.log} will be deleted.{lost}"
            " The rows in the target stay. The next start is a new query: it reads its source from the"
            " beginning."
        )

    def carry_out(self, now_us: int, why: str = "") -> Deleted:  # noqa: ARG002 -- the log that would keep it goes
        """Delete both.

        :raises FlusherAtWork, NotDrained, WrongOwner: as for `plan_reset`; or more would be lost than the
            operator has agreed to. Nothing is deleted then.
        :raises WrongOwner: another reset has ended meanwhile, and another query has begun.
        """
        query, checkpoint = self.query, self.query.open(self.query.checkpoint.url)
        self._refuse_more(_look(query, now_us, discard_unflushed=self.discard_unflushed))
        log, folder = query.log.backend, local_folder(checkpoint.url)
        objects = log.list()
        query.checkpoint.create_log_url(log.url)
        owned(query.log, query.checkpoint)
        checkpoint.delete([Checkpoint.METADATA])
        files = [path for name in SPARK_FOLDERS for path in checkpoint.list(f"{name}/")]
        checkpoint.delete(files)
        if folder is not None:  # Hadoop's checksums, which are no objects
            for name in SPARK_FOLDERS:
                shutil.rmtree(folder / name, ignore_errors=True)
            (folder / f".{Checkpoint.METADATA}.crc").unlink(missing_ok=True)
        log.delete(log.list(paths.MANIFEST.folder))
        log.delete(log.list())
        if (own := local_folder(log.url)) is not None:
            shutil.rmtree(own, ignore_errors=True)  # empty folders
        owned(query.log, query.checkpoint)
        checkpoint.delete([Checkpoint.METADATA])
        checkpoint.delete([Checkpoint.LOG_URL])
        if folder is not None:
            _remove_empty(folder / LOG_FOLDER, folder)
        return Deleted(
            query_id=self.query.query_id,
            checkpoint=checkpoint.url,
            log=log.url,
            objects=len(files) + len(objects) + 2,
            discarded_epochs=self.found.pending_epochs,
            discarded_rows=self.found.pending_rows,
        )

    def _refuse_more(self, now: Status) -> None:
        """Refuse what the operator was not asked about.

        :raises NotDrained: more would be lost.
        """
        agreed, found = _at_stake(self.found), _at_stake(now)
        if any(is_now > was for is_now, was in zip(found, agreed, strict=True)):
            raise NotDrained(
                f"Query {now.query_id} still runs: its log has got more rows since you were asked",
                "Nothing is deleted. Stop the query, and run the command again.",
            )


def plan_reset(query: Query, now_us: int, *, discard_unflushed: bool = False) -> Reset:
    """Plan the reset of a query that is stopped.

    :param query: as `find_query` returns it with `in_reset`, if an earlier reset may have died.
    :param now_us: microseconds since 1970.
    :param discard_unflushed: the operator gives up what only the log has.
    :raises FlusherAtWork: a flusher is alive.
    :raises NotDrained: only the log has some rows, and the operator did not give them up; or an earlier query
        with this checkpoint has left such a log.
    :raises WrongOwner: log and checkpoint do not belong together.
    """
    found = _look(query, now_us, discard_unflushed=discard_unflushed)
    return Reset(query, found, discard_unflushed=discard_unflushed)


def _look(query: Query, now_us: int, *, discard_unflushed: bool) -> Status:
    """Return how far the query is, unless that forbids the reset, see `plan_reset`."""
    query.list_afresh()
    owned(query.log, query.checkpoint)
    for each in [query] if not query.log.several else query.each("", detached=True):
        refuse_flusher(each.log, now_us, unless_stopped=False, patience=query.patience)
    logs = query.log.url.rpartition("/")[0]
    others = abandoned_logs(Location(query.checkpoint.url, logs, query.stores), query.query_id)
    if others:
        first = others[0]
        raise NotDrained(
            f"The checkpoint {query.checkpoint.url} is also that of query {first.query_id}, of which only a"
            " log is left",
            abandoned_log(first.log.url, first.epochs),
        )
    found = read_status(query.checkpoint, query.log, in_reset=True)
    if not found.safe_to_delete and not discard_unflushed:
        flush = "Run `wal-sink flush CHECKPOINT` before."
        if query.checkpoint.has_lost(query.query_id):
            flush = flush_published(query.log.url, found.published)
        remedy = " ".join(filter(None, (found.remedy, _OR_DISCARD)))
        if found.pending_epochs or found.published > found.flushed:
            remedy = f"{flush} {_OR_DISCARD}"
        elif found.quarantined_rows:
            remedy = _TO_EMPTY_QUARANTINE
        raise NotDrained(
            f"Checkpoint and log of query {query.query_id} cannot be deleted: {found.unsafe_because}",
            remedy,
        )
    return found


_OR_DISCARD = "Or add --discard-unflushed, if nobody wants these rows."
_TO_EMPTY_QUARANTINE = (
    "Repair the target, and run `wal-sink quarantine CHECKPOINT --retry`. Or keep the rows by `--export FILE`"
    " in place of `--retry`, and add --discard-unflushed."
)


def _at_stake(found: Status) -> tuple[int, ...]:
    """Return what would be lost with the log, in numbers that only grow while the query goes on.

    What is published and not checkpointed is not pending: there the last epoch says whether more came.
    """
    return found.published, found.pending_epochs, found.pending_rows, found.quarantined_rows


def _remove_empty(*folders: Path) -> None:
    """Remove local folders that have nothing in them any more."""
    for folder in folders:
        with contextlib.suppress(OSError):  # others have files there
            folder.rmdir()


def _unflushed(found: Status) -> str:
    epochs = counted(found.pending_epochs, "epoch")
    return f"{epochs} with {counted(found.pending_rows, 'row')} ({byte_count(found.pending_bytes)})"
