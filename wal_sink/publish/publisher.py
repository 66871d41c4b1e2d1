"""Publishes an epoch on the driver's host, in `commit()` (rules `one-publisher`, `segments`, `publish`).

Before the publish, the segments of the epoch are durable, and no manifest names them. After the publish, the
state's `last` is the epoch's manifest. Spark has not written `commits/N` yet, so no row is sent. If the epoch
is refused before its manifest is created, its segments are deleted. Once the manifest exists, this module
deletes none of them, since the state may name them.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from wal_sink.checkpoint.checkpoint import Checkpoint, Offsets
from wal_sink.errors import (
    REPORT_IT,
    CheckpointNotVisible,
    LogFull,
    SegmentNotVisible,
    StoppedWaiting,
    WalSinkError,
)
from wal_sink.model import paths
from wal_sink.model.ledger import SENDINGS
from wal_sink.model.manifest import (
    Appended,
    Execution,
    Manifest,
    SegmentRef,
)
from wal_sink.model.plan import Plan
from wal_sink.model.state import Predecessor, State
from wal_sink.progress.flusher_report import (
    SILENT_S,
    FlusherReport,
    age_s,
    read_report,
    stopping_error,
    this_process,
)
from wal_sink.protocol import state as protocol
from wal_sink.protocol.state import has_space, pending_bytes
from wal_sink.telemetry import OncePerMinute
from wal_sink.units import now_us
from wal_sink.wal.location import refuse_other_log, refuse_vanished
from wal_sink.wal.manifests import create_manifest, new_manifest
from wal_sink.wal.store import (
    LogStore,
    advance,
    delete_garbage,
    delete_unfinished,
    existing,
    newest,
    update,
)

logger = logging.getLogger(__name__)

OnFull = Literal["block", "fail"]

_PAUSE_S, _PAUSE_BILLED_S = 0.5, 5.0
"""Seconds between two checks whether the log has space. The second value is for a log in a bucket."""

_MOST_UNLISTED = 10
"""The most segments of an epoch whose sizes are read one by one from a bucket. For more segments, the bucket
is listed: one request returns 1,000 sizes."""


@dataclass(frozen=True, kw_only=True)
class Publisher:
    """Publishes the epochs of a query. Each `commit()` makes a publisher, so nothing is kept in memory."""

    store: LogStore
    checkpoint: Checkpoint
    plans: Mapping[str, Plan]
    """Plan of each target by the target's name, by which the rows were checked. All plans have one key."""
    max_bytes: int
    """`wal.maxBytes`."""
    on_full: OnFull
    """`wal.onFull`."""
    options: Mapping[str, str]
    """The sink's options without secrets. The state keeps the options of the run that publishes."""
    begins_after: int | None = None
    """The epoch after which a new log begins. None stands for the last completed epoch."""
    clock_us: Callable[[], int] = now_us
    """Returns the time in microseconds since 1970."""
    sleep: Callable[[float], None] = time.sleep
    """Waits for a number of seconds, while the log has no space."""

    def publish(self, execution: Execution, appended: Sequence[Appended]) -> Manifest | None:
        """Publish an epoch. Return None if Spark replays an epoch that the log has already.

        :param execution: the run and the epoch.
        :param appended: reports of all tasks, in the order of the partitions.
        :raises WalSinkError: the epoch is refused, see `protocol.state.predecessor_for`; or the log has no
            space, see `_SpaceWait.admits`.
        """
        epoch, run_id = execution.epoch, execution.run_id
        batch = _joined(execution, appended)
        try:
            offsets, state, predecessor = self._admit(batch)
        except (OSError, WalSinkError):
            discard(self.store, appended)
            raise
        if predecessor is None:
            discard(self.store, appended)
            logger.warning(
                "epoch %d of %s is in the log already, and Spark has computed it again. The new rows are"
                " not published. The targets get the first rows, even if they differ",
                epoch,
                self.checkpoint.url,
            )
            return None
        # The files become durable in the order in which Spark wrote them. If a power loss left offsets/N
        # without commits/N-1, Spark would continue with N, and the checkpoint would seem to be set back.
        self.checkpoint.make_durable([f"commits/{epoch - 1}", f"offsets/{epoch}"])
        manifest = new_manifest(
            batch,
            offsets,
            predecessor,
            plan=next(iter(self.plans.values())).key,
            published_us=self.clock_us(),
            sendings=SENDINGS if any(plan.sent_once for plan in self.plans.values()) else 1,
        )
        path = paths.MANIFEST.path(paths.ManifestName(epoch, run_id))
        made = create_manifest(self.store, path, manifest)
        update(
            self.store,
            lambda state: protocol.publish(
                state,
                run_id,
                made,
                self.checkpoint.last_commit(),
                self.max_bytes,
                self._actor(),
            ),
            state,
        )
        return manifest

    def _admit(self, batch: Appended) -> tuple[Offsets, State, Predecessor | None]:
        """Open the run, wait for space in the log, and check the files of the epoch.

        Return the offsets, the newest state, and the predecessor of the manifest. A replay has no
        predecessor.
        """
        execution = batch.execution
        opened = self._open(execution, batch.planned)
        offsets = self.checkpoint.committing_offsets(execution.epoch)
        state, predecessor = self._predecessor(opened, execution, offsets)
        if predecessor is not None:
            try:
                self._refuse_missing_files(execution.epoch, batch.files)
            except SegmentNotVisible:
                # Another run may have opened and deleted the files as garbage. The next line then raises
                # `Fenced`.
                self._predecessor(existing(self.store), execution, offsets)
                raise
        return offsets, state, predecessor

    def _open(self, execution: Execution, planned: int | None) -> State:
        """Let this run publish, and create the log before its first epoch. Return the newest state.

        :param planned: number of the newest state when the batch was planned. None if unknown.
        """
        state = newest(self.store)
        if state is not None and state.run is not None and state.run.run_id == execution.run_id:
            protocol.refuse_other_place(state, execution.query_id, self.checkpoint.url)
            return state
        self._refuse_other_checkpoint(execution.query_id)
        refuse_other_log(self.store, self.checkpoint)
        # Without metadata Spark would continue as a new query, and no process would flush this log.
        self.checkpoint.make_durable([self.checkpoint.METADATA])
        opening = protocol.Opening(
            query_id=execution.query_id,
            checkpoint=self.checkpoint.url,
            run_id=execution.run_id,
            targets=tuple(self.plans),
            options=self.options,
        )
        if state is None:
            refuse_vanished(self.store, self.checkpoint)
            last = self.checkpoint.last_commit()
            begins_after = last if self.begins_after is None else self.begins_after
            made = protocol.create(opening, uuid.uuid4().hex, begins_after, self._actor())
            advance(self.store, None, made)  # no effect if another run was faster
        self.checkpoint.create_log_url(self.store.url)
        refuse_other_log(self.store, self.checkpoint)
        opened = update(
            self.store,
            lambda newest_state: protocol.open_run(
                newest_state,
                opening._replace(after=_opened_before(newest_state, planned)),
                execution.epoch,
                self.checkpoint.last_commit(),
                self._actor(),
            ),
        )
        # Earlier runs cannot publish any more, so their objects are garbage now.
        delete_garbage(self.store, opened)
        delete_unfinished(self.store)
        return opened

    def _predecessor(
        self, state: State, execution: Execution, offsets: Offsets
    ) -> tuple[State, Predecessor | None]:
        """Wait for space in the log. Return the newest state, and the predecessor of the manifest.

        The predecessor is None for a replay, which is not published.
        """
        space = _SpaceWait(self, execution)
        while True:
            predecessor = protocol.predecessor_for(
                state,
                execution.run_id,
                execution.epoch,
                offsets.digest,
                self.checkpoint.last_commit(),
            )
            if predecessor is None or space.admits(state, predecessor):
                return state, predecessor
            state = existing(self.store)

    def _refuse_other_checkpoint(self, query_id: str) -> None:
        """Refuse a checkpoint that belongs to another query than the running one (rule `identity`)."""
        actual = self.checkpoint.query_id()
        if actual != query_id:
            raise CheckpointNotVisible(
                f"{self.checkpoint.url}/metadata has query id {actual}, and query {query_id} runs.",
                "Give checkpointLocation as an absolute path or URL that driver and executors share.",
            )

    def _refuse_missing_files(self, epoch: int, files: Sequence[SegmentRef]) -> None:
        """Refuse an epoch if a segment is missing or has a wrong size (rule `segments`)."""
        is_listed = self.store.billed and len(files) > _MOST_UNLISTED
        sizes = self.store.sizes(paths.segment_folder(epoch)) if is_listed else {}
        for segment in files:
            size = sizes.get(segment.path)
            if size is None:
                with contextlib.suppress(FileNotFoundError):
                    size = self.store.size(segment.path)
            if size != segment.bytes:
                present = "does not exist" if size is None else f"has {size} bytes"
                raise SegmentNotVisible(
                    f"{self.store.url}/{segment.path} {present} on the driver's host; its task wrote"
                    f" {segment.bytes} bytes.",
                    "Set wal.location to a place that the driver and all executors share.",
                )

    def _actor(self) -> protocol.Actor:
        return protocol.Actor(by=this_process(), now_us=self.clock_us())


def discard(store: LogStore, appended: Iterable[Appended]) -> None:
    """Delete segments that no manifest names. If the store fails, they stay until their epoch is trimmed."""
    try:
        store.delete(segment.path for task in appended for segment in task.files)
    except OSError as error:
        logger.info("segments of an epoch that was not published stay for now: %r", error)


def discard_call(store: LogStore, execution: Execution, call: str) -> None:
    """Delete the segments of one call's tasks, none of which has reported.

    If the store fails, the segments stay until their epoch is trimmed.

    :param call: prefix of the nonces of these segments.
    """
    try:
        listed = store.list(paths.segment_folder(execution.epoch))
        names = ((path, paths.SEGMENT.parse(path)) for path in listed)
        store.delete(
            path
            for path, name in names
            if name and name.run_id == execution.run_id and name.nonce.startswith(call)
        )
    except OSError as error:
        logger.info("segments of a failed batch stay for now: %r", error)


def _opened_before(state: State, planned: int | None) -> str:
    """Return the run that had opened last when a batch was planned. Empty if a run has opened since then."""
    if planned is not None and state.run is not None and state.run.number > planned:
        return ""
    return protocol.last_opened(state)


def _joined(execution: Execution, appended: Sequence[Appended]) -> Appended:
    """Join the reports of all tasks.

    :raises WalSinkError: a report belongs to another query, run or epoch.
    """
    others = {task.execution for task in appended} - {execution}
    if others:
        raise WalSinkError(
            f"Epoch {execution.epoch} of run {execution.run_id} is to be published with reports of"
            f" {sorted(others)}.",
            REPORT_IT,
        )
    return Appended(
        execution=execution,
        segments=tuple(segment for task in appended for segment in task.segments),
        refused=tuple(segment for task in appended for segment in task.refused),
        planned=max((task.planned for task in appended if task.planned is not None), default=None),
    )


class _SpaceWait:
    """Lets one epoch be published when the log has space for it (`wal.maxBytes`, `wal.onFull`)."""

    def __init__(self, publisher: Publisher, execution: Execution) -> None:
        self._publisher, self._execution = publisher, execution
        self._waited_s = 0.0
        self._lines = OncePerMinute()

    def admits(self, state: State, predecessor: Predecessor) -> bool:
        """Return True if the epoch may be published now. If not, wait for a moment and return False.

        :raises LogFull: the log has no space, and `wal.onFull` is `fail`.
        :raises StoppedWaiting: Spark was told to stop the run.
        :raises WalSinkError: the error that has stopped the flusher of the slowest target.
        """
        publisher, epoch = self._publisher, self._execution.epoch
        if has_space(state, predecessor, publisher.max_bytes):
            if self._waited_s:
                logger.warning(
                    "the log has space again. Epoch %d continues after a wait of %.0f s",
                    epoch,
                    self._waited_s,
                )
            else:
                self._warn_of_no_flusher(state)
            return True
        slowest = state.slowest
        report = read_report(publisher.store, slowest.name)
        now_us = publisher.clock_us()
        full = (
            f"{pending_bytes(state, predecessor):,} bytes are not flushed to {slowest.name}, and wal.maxBytes"
            f" is {publisher.max_bytes:,}. {_flusher_summary(report, now_us)}"
        )
        if publisher.on_full == "fail":
            raise LogFull(
                f"Epoch {epoch} is not published: {full}",
                f"Nothing is lost. `wal-sink status {publisher.checkpoint.url}` shows why the flush lags."
                " Repair the cause, then start the query again: Spark computes the epoch again. Or raise"
                " wal.maxBytes, or let the query wait: wal.onFull=block.",
            )
        if report is not None and report.stopping == self._execution.run_id:
            raise StoppedWaiting(
                f"The query was stopped while epoch {epoch} waited for space in the log.",
                "Nothing is lost. Start the query again: Spark computes the epoch again.",
            )
        stopped = stopping_error(report, now_us)
        if stopped is not None:
            raise stopped
        if self._lines.is_due():
            logger.warning("epoch %d waits for space in the log: %s", epoch, full)
        pause_s = _PAUSE_BILLED_S if publisher.store.billed else _PAUSE_S
        publisher.sleep(pause_s)
        self._waited_s += pause_s
        return False

    def _warn_of_no_flusher(self, state: State) -> None:
        """Warn, at most once a minute, if epochs are pending and no process has flushed for half a minute."""
        now_us = self._publisher.clock_us()
        slowest = state.slowest
        lags = slowest.mark.epoch < state.settled
        if not lags or now_us - slowest.mark.at_us < SILENT_S * 1_000_000:
            return
        report = read_report(self._publisher.store, slowest.name)
        if (report is None or age_s(report, now_us) > SILENT_S) and _NO_FLUSHER.is_due():
            logger.warning(
                "no process flushes this query. %s The epochs stay in the log. To flush them:"
                " wal-sink flush %s --follow",
                _flusher_summary(report, now_us),
                self._publisher.checkpoint.url,
            )


_NO_FLUSHER = OncePerMinute()
"""Limits the warning that no process flushes. It is global, since each `commit()` makes a `Publisher`."""


def _flusher_summary(report: FlusherReport | None, now_us: int) -> str:
    """Return sentences about the process that flushes, what the process does, and its error."""
    if report is None:
        return (
            "No process has flushed this query yet. The process that called wal_sink.register flushes it, or"
            " `wal-sink flush`."
        )
    text = f"{report.flusher} reported {age_s(report, now_us):.0f} s ago: {report.doing}"
    if report.error is not None:
        text += f", with the error {report.error.summary}"
    return f"{text.rstrip('.')}."
