"""Publishes an epoch on the driver's host, in `commit()`: step 3 of `docs/protocol/README.md`.

Before it, the epoch's segments are durable and nothing refers to them. After it, one manifest does. Spark
has not written `commits/N` yet, so no row may be sent: a flusher does that when the file is there. When the
epoch is refused before its manifest, its segments are deleted; from then on nothing is deleted, since the
manifest may exist (rule 7).
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.configuration import target_names
from wal_sink.errors import (
    REPORT_IT,
    AlreadyPublished,
    CheckpointNotVisible,
    Diverged,
    Fenced,
    SegmentNotVisible,
    StoppedWaiting,
    WalSinkError,
)
from wal_sink.model import paths
from wal_sink.model.manifest import (
    Appended,
    Attempt,
    Execution,
    Manifest,
    Offsets,
    SegmentRef,
)
from wal_sink.model.records import LogIdentity
from wal_sink.publish.backpressure import Backpressure
from wal_sink.publish.fencing import claim_generation, fenced, leave_proof, refuse_overtaken
from wal_sink.publish.orphans import discard, sweep_orphans
from wal_sink.wal.location import lost_identity, owned, refuse_vanished
from wal_sink.wal.log import Log
from wal_sink.wal.targets import (
    flushed_limits,
    mark_anywhere,
    record_anywhere,
    refuse_other_targets,
)

logger = logging.getLogger(__name__)


_LISTED_FROM = 10
"""More segments than this are listed in a bucket: one request for a thousand, instead of one for each."""


class _Seen(NamedTuple):
    """What was seen of log and checkpoint before an epoch is published."""

    attempt: Attempt
    checkpointed: int
    offsets: Offsets
    first_epoch: int
    flushed_anywhere: int
    """The last epoch that is flushed to any target, -1 for none."""
    flushed_everywhere: int
    """The last epoch that is flushed to every target: what lies above it takes space."""


class Publisher:
    """Publishes an epoch; `commit()` makes one each time.

    :param clock_us: microseconds since 1970.
    :param options: the sink's options without secrets, kept with the run's claim.
    :param backpressure: waits for space in the log, for one epoch; None for a log without a budget.
    """

    def __init__(
        self,
        log: Log,
        checkpoint: Checkpoint,
        *,
        plan: str,
        options: Mapping[str, str],
        clock_us: Callable[[], int],
        backpressure: Backpressure | None = None,
    ) -> None:
        self._log = log
        self._checkpoint = checkpoint
        self._plan = plan
        self._options = options
        self._clock_us = clock_us
        self._backpressure = backpressure

    def publish(self, execution: Execution, appended: Sequence[Appended]) -> Manifest | None:
        """Publish an epoch; None when it was flushed before and Spark merely replays it.

        :param execution: the run that has computed it.
        :param appended: what every task of it reported, in the order of the partitions.
        :raises CheckpointNotVisible, NotRegistered, Fenced, WrongOwner, Diverged,
            UnknownOffsetsFormat, SegmentNotVisible, AlreadyPublished, OptionError: see `wal_sink.errors`.
        :raises LogFull, NoFlusher, StoppedWaiting: there is no space in the log, see `budget`; or the error
            at which the flusher has stopped.
        """
        batch = _joined(execution, appended)
        try:
            seen = self._admit(batch)
        except (OSError, WalSinkError):
            discard(self._log, appended)
            raise
        if seen.flushed_anywhere >= batch.epoch:
            discard(self._log, appended)
            refuse_overtaken(self._log, seen.attempt)
            return None
        manifest = self._create_manifest(batch, seen)
        if self._backpressure is not None:
            self._backpressure.published(manifest)
        return manifest

    def _admit(self, batch: Appended) -> _Seen:
        """Check that the epoch may be published, as soon as there is space for it."""
        seen = self._look(batch)
        while seen.flushed_anywhere < batch.epoch and not self._has_space(batch, seen):
            seen = self._look_again(batch)  # nothing seen before a wait is used
        if seen.flushed_anywhere < batch.epoch:
            self._refuse_missing_files(batch.files, seen.attempt)
        return seen

    def _look(self, batch: Appended) -> _Seen:
        """Check that this run may publish the epoch, but for space in the log."""
        self._refuse_other_checkpoint(batch.query_id)
        # Before the claim: a copy must not fence the original.
        identity = owned(self._log, self._checkpoint) or refuse_vanished(
            self._log, self._checkpoint
        )
        try:
            claimed = claim_generation(
                self._log,
                batch.run_id,
                self._options,
                batch.epoch,
                before=lambda: self._refuse_to_claim(batch),
            )
            checkpointed = self._checkpoint.last_commit(fresh=True)
            _refuse_checkpointed(batch, checkpointed)
        except Fenced:
            leave_proof(self._log, batch.epoch - 1, batch.run_id)
            raise
        if claimed.is_new:
            sweep_orphans(self._log, batch.run_id, checkpointed=batch.epoch - 1)
        offsets = self._checkpoint.committing_offsets(batch.epoch)
        first_epoch = self._first_epoch(identity, batch.epoch)
        flushed = self._flushed_before(batch.epoch, offsets)
        attempt = Attempt(batch.epoch, claimed.generation)
        fresh = claimed.is_new or claimed.early
        everywhere = self._flushed_everywhere(fresh=fresh) if self._log.several else flushed
        return _Seen(attempt, checkpointed, offsets, first_epoch, flushed, everywhere)

    def _refuse_to_claim(self, batch: Appended) -> None:
        """Refuse a run that cannot publish, before its claim stops an older one."""
        _refuse_checkpointed(batch, self._checkpoint.last_commit(fresh=True))
        if self._log.several:
            refuse_other_targets(self._log, target_names(self._options))

    def _flushed_everywhere(self, *, fresh: bool) -> int:
        """Return the last epoch that is flushed to every target; the run has made plans of all of them.

        :param fresh: the run may not have listed the targets since its claim. `attach` announces a target,
            then looks for claims: the one or the other is seen.
        :raises OptionError: a target was attached meanwhile that the run does not name.
        """
        limits = {view.target: flushed for view, flushed in flushed_limits(self._log, fresh=fresh)}
        names = target_names(self._options)
        if not limits.keys() <= {*names}:
            refuse_other_targets(self._log, names)
        return min(limits.values(), default=-1)

    def _has_space(self, batch: Appended, seen: _Seen) -> bool:
        """Whether the epoch may be published now; False after a pause, in which that may change."""
        backpressure = self._backpressure
        if backpressure is None:
            return True
        if backpressure.admits(
            seen.attempt,
            checkpointed=seen.checkpointed,
            flushed=seen.flushed_everywhere,
            first_epoch=seen.first_epoch,
        ):
            return True
        before = batch.epoch - 1
        if len(self._log.attempts_at(before)) > 1:
            leave_proof(self._log, before, batch.run_id)  # or it waits for this epoch: see `budget`
        backpressure.pause()
        return False

    def _look_again(self, batch: Appended) -> _Seen:
        """Look anew after a pause, unless the run was told to stop meanwhile (rule 2)."""
        if self._log.read(paths.STOP, batch.run_id) is not None:
            raise StoppedWaiting(
                "The query was stopped while an epoch waited for space in the log",
                "Nothing is lost. Start the query again; Spark computes the epoch anew.",
            )
        return self._look(batch)

    def _create_manifest(self, batch: Appended, seen: _Seen) -> Manifest:
        """Create the manifest, and see that it counts (rules 6 and 7)."""
        manifest = Manifest(
            epoch=batch.epoch,
            generation=seen.attempt.generation,
            query_id=batch.query_id,
            run_id=batch.run_id,
            nonce=uuid.uuid4().hex,
            plan=self._plan,
            segments=batch.segments,
            refused=batch.refused,
            offsets=seen.offsets.text,
            offsets_digest=seen.offsets.digest,
            published_us=self._clock_us(),
        )
        present = self._log.create_manifest(manifest)
        if present is not None and present.nonce != manifest.nonce:
            raise AlreadyPublished(
                f"{self._log.url}/{paths.MANIFEST.path(manifest.attempt)} exists with other contents",
                "Two publishers act as one run. Stop the query and start it again.",
            )
        refuse_overtaken(self._log, manifest.attempt)
        if present is None:  # an older run has committed it after all, and it is trimmed
            raise fenced(f"Epoch {batch.epoch} was flushed from another attempt meanwhile")
        return manifest

    def _refuse_other_checkpoint(self, query_id: str) -> None:
        """Refuse a checkpoint that is not the one from which Spark runs (rule 0)."""
        found = self._checkpoint.query_id()
        if found != query_id:
            raise CheckpointNotVisible(
                f"{self._checkpoint.url}/metadata is of query {found}, the running one is {query_id}",
                "Give checkpointLocation as an absolute location that driver and executors share.",
            )

    def _first_epoch(self, identity: LogIdentity | None, epoch: int) -> int:
        """Return the first epoch of the log, which its first run has fixed as it started (rule 1)."""
        if identity is None:  # the run has a ticket, and the log was begun before that
            raise lost_identity(self._log)
        if epoch < identity.first_epoch:
            raise Diverged(
                f"Epoch {epoch} lies before the first epoch {identity.first_epoch} of {self._log.url}",
                "The checkpoint was set back. Restore it, or start with a new checkpoint. If nothing was"
                " published in the log yet: stop the query, delete the log, and start again.",
            )
        return identity.first_epoch

    def _flushed_before(self, epoch: int, offsets: Offsets) -> int:
        """Return the last epoch that is flushed, -1 for none.

        Rule 5: a replay of what is flushed is ignored if it is the same, else refused.
        """
        flushed = mark_anywhere(self._log)
        if epoch > flushed:
            return flushed
        record = record_anywhere(self._log, epoch)
        if record is None and (fresh := mark_anywhere(self._log, fresh=True)) < epoch:
            return fresh  # a rewind has deleted the record, which an old listing has
        if record is None or record.offsets_digest != offsets.digest:
            raise Diverged(
                f"Epoch {epoch} was flushed"
                + (" long ago" if record is None else " with other source offsets")
                + f" and Spark computes it again; {self._log.url} is flushed up to {flushed}",
                "The checkpoint was set back. Restore the newer checkpoint, or start with a new one;"
                " what is in the table stays.",
            )
        logger.warning(
            "epoch %d of %s is flushed already, and Spark computes it again. The new"
            " rows are not published: the table keeps the first ones, even where they"
            " differ",
            epoch,
            self._checkpoint.url,
        )
        return flushed

    def _refuse_missing_files(self, files: Sequence[SegmentRef], attempt: Attempt) -> None:
        """Refuse an epoch of which a file is missing (rule 4), or deleted by a newer run (rule 18)."""
        many = self._log.backend.billed and len(files) > _LISTED_FROM
        listed = self._log.backend.sizes(paths.segment_folder(attempt.epoch)) if many else {}
        for segment in files:
            size = listed.get(segment.path)
            if size is None:
                with contextlib.suppress(FileNotFoundError):
                    size = self._log.backend.size(segment.path)
            if size != segment.bytes:
                refuse_overtaken(self._log, attempt)
                found = "is not there" if size is None else f"has {size} bytes"
                raise SegmentNotVisible(
                    f"{self._log.url}/{segment.path} {found} on the driver's host; its task wrote"
                    f" {segment.bytes} bytes",
                    "Set wal.location to a place that the driver and all executors share.",
                )


def _refuse_checkpointed(batch: Appended, checkpointed: int) -> None:
    """Refuse an epoch that Spark has completed (rule 5)."""
    if checkpointed >= batch.epoch:
        raise fenced(f"Epoch {batch.epoch} is checkpointed already, by another run")


def _joined(execution: Execution, appended: Sequence[Appended]) -> Appended:
    """Join what the tasks report; they have to agree on query, run and epoch."""
    others = {task.execution for task in appended} - {execution}
    if others:
        raise WalSinkError(
            f"Epoch {execution.epoch} of run {execution.run_id} is to be published with reports of"
            f" {sorted(others)}",
            REPORT_IT,
        )
    return Appended(
        **execution._asdict(),
        segments=tuple(segment for task in appended for segment in task.segments),
        refused=tuple(segment for task in appended for segment in task.refused),
    )
