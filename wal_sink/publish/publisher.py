"""What `commit()` does on the driver's host: make an epoch's segments its content (step 3).

Before it, the epoch's segments are durable and nothing refers to them. After it, one manifest does.
Spark has not written `commits/N` yet, so nothing may be sent: a flusher does that when it has.
`abort()` has no counterpart here. It deletes nothing, because Spark also calls it after a `commit()`
that raised, when the manifest may exist (rule 7).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from state_backends import StateBackendError
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import (
    AlreadyPublished,
    CheckpointNotVisible,
    Diverged,
    Fenced,
    NotRegistered,
    SegmentNotVisible,
    StoppedWaiting,
    WalSinkError,
)
from wal_sink.model import paths
from wal_sink.model.manifest import Attempt, Manifest, SegmentRef
from wal_sink.model.offsets import Offsets
from wal_sink.model.records import Claim, Kept, LogIdentity
from wal_sink.model.task import Appended
from wal_sink.publish.backpressure import Backpressure
from wal_sink.wal.log import Log
from wal_sink.wal.ownership import own, owned

logger = logging.getLogger(__name__)


class _Ready(NamedTuple):
    """What was seen before an epoch is published."""

    run_id: str
    generation: int
    checkpointed: int
    offsets: Offsets
    flushed: int
    """The last epoch that is flushed, -1 for none."""


_STALE_RUN = "A newer run of this query has taken over. Stop this one; nothing of it is flushed."


class Publisher:
    """Publishes the epochs of one run.

    :param clock_us: microseconds since 1970.
    :param options: the sink's options without secrets, kept with the run's claim.
    :param room: waits for room in the log, for one epoch; None for a log without a budget.
    """

    def __init__(
        self,
        log: Log,
        checkpoint: Checkpoint,
        *,
        plan: str,
        options: Mapping[str, str],
        clock_us: Callable[[], int],
        room: Backpressure | None = None,
    ) -> None:
        self._log = log
        self._checkpoint = checkpoint
        self._plan = plan
        self._options = dict(options)
        self._clock_us = clock_us
        self._room = room

    def publish(self, epoch: int, appended: Sequence[Appended]) -> Manifest | None:
        """Publish an epoch; None when it was flushed before and Spark merely replays it.

        :param appended: what every task of the epoch reported, in the order of the partitions.
        :raises CheckpointNotVisible, NotRegistered, Fenced, WrongOwner, Diverged,
            UnknownOffsetsFormat, SegmentNotVisible, AlreadyPublished: see `wal_sink.errors`.
        :raises LogFull, NoFlusher, StoppedWaiting: there is no room in the log, see `budget`; or the error
            at which the flusher has stopped.
        """
        query_id, run_id = _whose(epoch, appended)
        segments = tuple(segment for task in appended for segment in task.segments)
        ready = self._ready(epoch, query_id, run_id)
        while ready.flushed < epoch and not self._has_room(epoch, ready, segments):
            generation = ready.generation
            try:
                ready = self._ready(epoch, query_id, run_id)  # nothing seen before a wait is used
            except StoppedWaiting:
                self._discard(Attempt(epoch, generation), segments)
                raise
        generation, offsets = ready.generation, ready.offsets
        if ready.flushed >= epoch:
            self._still_newest(generation, epoch)
            return None
        self._see_segments(segments)
        manifest = Manifest(
            epoch=epoch,
            generation=generation,
            query_id=query_id,
            run_id=run_id,
            nonce=uuid.uuid4().hex,
            plan=self._plan,
            segments=segments,
            offsets=offsets.text,
            offsets_digest=offsets.digest,
            published_us=self._clock_us(),
        )
        present = self._log.create_manifest(manifest)  # rule 6
        if present is not None and present.nonce != manifest.nonce:
            raise AlreadyPublished(
                f"{self._log.url}/{paths.manifest(manifest.attempt)} exists with other contents",
                "Two publishers act as one run. Stop the query and start it again.",
            )
        self._still_newest(generation, epoch)
        if present is None:  # an older run has committed it after all, and it is trimmed
            raise Fenced(f"Epoch {epoch} was flushed from another attempt meanwhile", _STALE_RUN)
        if self._room is not None:
            self._room.unflushed.published(self._log, manifest.attempt, manifest.bytes)
        return manifest

    def _ready(self, epoch: int, query_id: str, run_id: str) -> _Ready:
        """See that this run may publish the epoch, but for room in the log."""
        self._see_checkpoint(query_id)
        owned(self._log, self._checkpoint)  # before the claim: a copy must not fence the original
        try:
            generation = self._own_generation(run_id)
            checkpointed = self._checkpoint.last_commit()
            if checkpointed >= epoch:  # rule 5
                raise Fenced(f"Epoch {epoch} is checkpointed already, by another run", _STALE_RUN)
        except Fenced:
            self._note_kept(epoch - 1, run_id)
            raise
        offsets = self._checkpoint.offsets(epoch)
        self._own_log(epoch)
        return _Ready(
            run_id, generation, checkpointed, offsets, self._flushed_before(epoch, offsets)
        )

    def _has_room(self, epoch: int, ready: _Ready, segments: Sequence[SegmentRef]) -> bool:
        """Whether the epoch may be published now; False after a pause, in which that may change."""
        room = self._room
        if room is None:
            return True
        try:
            if room.is_there(
                self._log,
                epoch,
                generation=ready.generation,
                flushed=ready.flushed,
                checkpointed=ready.checkpointed,
            ):
                return True
        except WalSinkError:
            self._discard(Attempt(epoch, ready.generation), segments)
            raise
        before = Attempt(epoch - 1, ready.generation)
        if sum(a.epoch == before.epoch for a in self._log.attempts()) > 1:
            self._note_kept(before.epoch, ready.run_id)  # or it waits for this epoch: see `budget`
        room.wait(self._log)
        return False

    def _discard(self, attempt: Attempt, segments: Sequence[SegmentRef]) -> None:
        """Delete what the tasks of a refused epoch have written.

        Otherwise a query that is started again and again fills the disk in spite of its budget. Only a
        manifest of this attempt could name these segments, and it would have been made by this call.
        """
        try:
            if self._log.manifest(attempt) is None:
                self._log.delete(segment.path for segment in segments)
        except (OSError, StateBackendError, WalSinkError):  # what is raised is why it is refused
            logger.warning("segments of epoch %d stay behind", attempt.epoch, exc_info=True)

    def _still_newest(self, generation: int, epoch: int) -> None:
        """Rule 7: look again before Spark may write `commits/<epoch>`."""
        if self._log.highest_generation() > generation:
            raise Fenced(f"Generation {generation} was overtaken at epoch {epoch}", _STALE_RUN)

    def _see_checkpoint(self, query_id: str) -> None:
        """Rule 0: the checkpoint read here is the one that Spark runs from."""
        found = self._checkpoint.query_id()
        if found != query_id:
            raise CheckpointNotVisible(
                f"{self._checkpoint.url}/metadata is of query {found}, the running one is {query_id}",
                "Give checkpointLocation as an absolute location that driver and executors share.",
            )

    def _own_generation(self, run_id: str) -> int:
        """Rule 3: the generation is one above the ticket, claimed once, and still the highest."""
        ticket = self._log.ticket(run_id)
        if ticket is None and self._room is not None and self._room.waited:
            raise StoppedWaiting(
                "The query was stopped while an epoch waited for room in the log",
                "Nothing is lost. Start the query again; Spark computes the epoch anew.",
            )
        if ticket is None:
            raise NotRegistered(
                f"Run {run_id} has no ticket in {self._log.url}",
                "Call wal_sink.register(spark) before start(), on the same SparkSession, and start"
                " the query again. If it was called, look for its error in the driver's log.",
            )
        mine = ticket.generation + 1
        if self._log.highest_generation() > mine:
            raise Fenced(f"Generation {mine} was overtaken", _STALE_RUN)
        claim = self._log.claim(mine, Claim(run_id=run_id, options=self._options))
        if claim.run_id != run_id:
            raise Fenced(f"Generation {mine} is claimed by run {claim.run_id}", _STALE_RUN)
        return mine

    def _note_kept(self, epoch: int, run_id: str) -> None:
        """Rule 11: leave a proof that Spark kept the last epoch of this run, which ends here, or waits.

        Spark lets a run come to an epoch only after `commits/` of the one before. The run that
        fenced this one may have published that epoch as well.
        """
        try:
            ticket = self._log.ticket(run_id)
            mine = Attempt(epoch, ticket.generation + 1) if ticket else None
            found = self._log.manifest(mine) if mine else None
            if mine is None or found is None or found[0].run_id != run_id:
                return  # not published by this run, or flushed and trimmed
            highest = self._log.highest_generation()
            self._log.create_kept(
                Kept(epoch=epoch, generation=mine.generation, run_id=run_id, highest=highest)
            )
        except (OSError, StateBackendError, WalSinkError):  # what is raised is that it is fenced
            logger.warning("that epoch %d was kept could not be noted", epoch, exc_info=True)

    def _own_log(self, epoch: int) -> None:
        """Rule 1: from the first publish on the log belongs to this checkpoint."""
        proposed = LogIdentity(
            log_id=uuid.uuid4().hex, checkpoint=self._checkpoint.url, first_epoch=epoch
        )
        identity = own(self._log, self._checkpoint, proposed)
        if epoch < identity.first_epoch:
            raise Diverged(
                f"Epoch {epoch} lies before the first epoch {identity.first_epoch} of {self._log.url}",
                "The checkpoint was set back. Restore it, or start with a new checkpoint.",
            )

    def _flushed_before(self, epoch: int, offsets: Offsets) -> int:
        """Return the last epoch that is flushed, -1 for none.

        Rule 5: a replay of what is flushed is passed over if it is the same, else refused.
        """
        mark = self._log.newest_flushed()
        if mark is None or epoch > mark.epoch:
            return mark.epoch if mark else -1
        record = self._log.flushed(epoch)
        if record is None or record.offsets_digest != offsets.digest:
            raise Diverged(
                f"Epoch {epoch} was flushed"
                + (" long ago" if record is None else " with other source offsets")
                + f" and Spark computes it again; {self._log.url} is flushed up to {mark.epoch}",
                "The checkpoint was set back. Restore the newer checkpoint, or start with a new one;"
                " what is in the table stays.",
            )
        logger.warning(
            "epoch %d of %s is flushed already; its replay is not published",
            epoch,
            self._checkpoint.url,
        )
        return mark.epoch

    def _see_segments(self, segments: Sequence[SegmentRef]) -> None:
        for segment in segments:
            try:
                size: int | None = self._log.backend.size(segment.path)
            except FileNotFoundError:
                size = None
            if size != segment.bytes:
                found = "is not there" if size is None else f"has {size} bytes"
                raise SegmentNotVisible(
                    f"{self._log.url}/{segment.path} {found} on the driver's host; its task wrote"
                    f" {segment.bytes} bytes",
                    "Set wal.location to a place that the driver and all executors share.",
                )


def _whose(epoch: int, appended: Sequence[Appended]) -> tuple[str, str]:
    """Return query id and run id, on which all tasks have to agree."""
    owners = {(task.query_id, task.run_id, task.epoch) for task in appended}
    if len(owners) != 1 or next(iter(owners))[2] != epoch:
        raise WalSinkError(
            f"commit({epoch}) was called with messages of {sorted(owners)}",
            "This is a bug in wal_sink or a change in Spark; please report it.",
        )
    query_id, run_id, _ = owners.pop()
    return query_id, run_id
