"""Reads the backlog: the epochs that are checkpointed and not flushed. It never connects to the target.

A manifest never changes. So a reader opens each manifest once and keeps four values of it: a backlog of
10,000 epochs costs 10,000 reads the first time, and one listing each time after that. Its callers:

*Metrics* (`look`) call at any time, in any thread, whatever the flusher is stuck in. A result is good for a
moment, so many callers cost no more than one. Only the first caller waits for a store that hangs: the
others get the last result, and so does everyone while nothing can be read.

*Status* (`count`) calls once, and needs the present state. It reads checkpoint, ledger records and
manifests itself, with a reader that is thrown away, and raises every error.

*The publisher* (`before`) must not list a long backlog for each epoch, and need not: one run at a time
publishes (rule 3), so its process has the sizes of what it published, and the last flushed epoch. The log
is read when a run comes to a process, or a rewind brings epochs back: Spark keeps its Python workers, but
may end one that is idle for a minute. Its budget counts all attempts (`stored_bytes`), because they are on
the disk.

*A start* (`read_backlog`) asks whether earlier runs have filled the log.

*Messages* (`pending_epochs`) only say how many epochs are pending, for which no manifest is opened.

Also here: reading many manifests, where a damaged one hides no other; and segments that no manifest names.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from wal_sink import clock
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import CorruptLog, WalSinkError
from wal_sink.model.manifest import Attempt, Manifest
from wal_sink.model.records import Backlog
from wal_sink.protocol.attempts import Contender, Evidence, proven_attempts
from wal_sink.wal.log import Log, read_many
from wal_sink.wal.quarantine import quarantined_rows
from wal_sink.wal.targets import flushed_epoch


class Scan(NamedTuple):
    """What was read. A manifest that was trimmed meanwhile is in neither."""

    manifests: Mapping[Attempt, Manifest]
    damaged: Mapping[Attempt, CorruptLog]


def read_manifests(log: Log, attempts: Iterable[Attempt]) -> Scan:
    """Read the manifests of attempts, and note what is wrong with those that cannot be read.

    Without the rows inside of them: there may be thousands.
    """

    def read(attempt: Attempt) -> tuple[Attempt, Manifest | CorruptLog | None]:
        try:
            found = log.manifest(attempt)
        except CorruptLog as error:
            return attempt, error
        return attempt, found and found.manifest.without_data()

    results = read_many(log, read, attempts)
    return Scan(
        {attempt: found for attempt, found in results if isinstance(found, Manifest)},
        {attempt: found for attempt, found in results if isinstance(found, CorruptLog)},
    )


def unnamed_segments(segments: Iterable[tuple[int, str]], found: Scan) -> list[str]:
    """Return the segments that no manifest names (rule 18): counted while their epoch waits.

    A failed attempt has left them, or a batch under way is writing them: its tasks may be alive. They go
    when a run claims its generation that fences theirs, or with their epoch.

    :param segments: epoch and path, listed before the manifests: a segment that is published meanwhile
        would look unnamed otherwise.
    :param found: all manifests of their epochs. No segment is returned of an epoch with a damaged one.
    """
    named = {ref.path for manifest in found.manifests.values() for ref in manifest.files}
    unreadable = {attempt.epoch for attempt in found.damaged}
    return [path for epoch, path in segments if path not in named and epoch not in unreadable]


FRESH_S, FRESH_BILLED_S = 0.5, 10.0
"""How long a look is good for. Longer where each look is paid for."""

_READERS_KEPT = 64


class _Facts(NamedTuple):
    """What is kept of a manifest."""

    run_id: str
    rows: int
    bytes: int
    published_us: int


class BacklogReader:
    """Reads the backlog of one log; used by any number of threads."""

    def __init__(self, checkpoint: Checkpoint, log: Log) -> None:
        self._checkpoint = checkpoint
        self._log = log
        self._fresh_s = FRESH_BILLED_S if checkpoint.billed or log.backend.billed else FRESH_S
        self._lock = threading.Lock()
        self._last: Backlog | None = None
        self._looked_s = float("-inf")
        self._known: dict[Attempt, _Facts] = {}
        self._flushed = -1
        """The last flushed epoch at the last `before`: a rewind, or an attach, brings epochs back."""
        self._through = -2
        """Every manifest up to this epoch is known, if it can be read and was not flushed."""
        self._unread: dict[int, int] = {}
        """When an epoch was first seen of which nothing can be read."""

    def look(self) -> Backlog | None:
        """Return the backlog; when it cannot be read, the last one that was, if any."""
        if self._lock.acquire(blocking=False):
            try:
                if time.monotonic() - self._looked_s > self._fresh_s:
                    # Commits first: what is flushed in between is not taken for pending.
                    checkpointed = self._checkpoint.last_commit()
                    flushed = flushed_epoch(self._log)
                    attempts = self._log.attempts() if checkpointed > flushed else ()
                    found, _ = self.count(checkpointed, flushed, attempts)
                    self._last = found._replace(quarantined_rows=quarantined_rows(self._log))
                    self._looked_s = time.monotonic()
            except (OSError, WalSinkError):
                pass  # `read_us` says how old it is; the flusher meets the same, and says so
            finally:
                self._lock.release()
        return self._last

    def count(
        self, checkpointed: int, flushed: int, attempts: Sequence[Attempt]
    ) -> tuple[Backlog, Scan]:
        """Count the backlog; return also the manifests that this has read.

        :param attempts: the manifests there are, ascending, listed after the other two were read.
        """
        found = self._learn(attempts, flushed)
        pending = [attempt for attempt in attempts if flushed < attempt.epoch <= checkpointed]
        chosen = {attempt.epoch: attempt for attempt in pending}  # the highest, as they ascend
        for epoch in {attempt.epoch for attempt in pending if attempt != chosen[attempt.epoch]}:
            chosen[epoch] = self._chosen([a for a in pending if a.epoch == epoch], attempts)
        epochs = count_epochs(self._log, checkpointed, flushed)
        return self._sum(pending, chosen, checkpointed, flushed, epochs), found

    def before(self, epoch: int, *, checkpointed: int, flushed: int, first_epoch: int) -> Backlog:
        """Count the backlog before an epoch, for the run that is about to publish it.

        :param first_epoch: of the log; nothing before it is ours.
        """
        with self._lock:
            if self._through < epoch - 1 or flushed < self._flushed:
                self._learn(self._log.attempts(fresh=True), flushed)
                self._through = epoch - 1
            self._flushed = flushed
            self._known = {a: facts for a, facts in self._known.items() if a.epoch > flushed}
            last = min(epoch - 1, checkpointed)
            pending = sorted(attempt for attempt in self._known if attempt.epoch <= last)
            highest = {attempt.epoch: attempt for attempt in pending}
            epochs = _between(last, flushed, first_epoch)
            return self._sum(pending, highest, last, flushed, epochs)

    def published(self, manifest: Manifest) -> None:
        """Note what this process has published: the next `before` need not look for it."""
        with self._lock:
            if self._through >= manifest.epoch - 1:
                self._known[manifest.attempt] = _facts(manifest)
                self._through = manifest.epoch

    def _learn(self, attempts: Sequence[Attempt], flushed: int) -> Scan:
        """Read the manifests that are not known yet, and forget those that are gone or flushed."""
        above = [attempt for attempt in attempts if attempt.epoch > flushed]
        found = read_manifests(self._log, [a for a in above if a not in self._known])
        known = self._known | {a: _facts(manifest) for a, manifest in found.manifests.items()}
        self._known = {attempt: known[attempt] for attempt in above if attempt in known}
        return found

    def _sum(
        self,
        pending: Sequence[Attempt],
        chosen: Mapping[int, Attempt],
        checkpointed: int,
        flushed: int,
        epochs: int,
    ) -> Backlog:
        now_us = clock.now_us()
        found = {epoch: self._known[a] for epoch, a in chosen.items() if a in self._known}
        unread = [e for e in range(checkpointed - epochs + 1, checkpointed + 1) if e not in found]
        self._unread = {epoch: self._unread.get(epoch, now_us) for epoch in unread}
        published_us = [each.published_us for each in found.values()]
        return Backlog(
            checkpointed=checkpointed,
            flushed=flushed,
            epochs=epochs,
            rows=sum(each.rows for each in found.values()),
            bytes=sum(each.bytes for each in found.values()),
            stored_bytes=sum(self._known[a].bytes for a in pending if a in self._known),
            oldest_us=min([*published_us, *self._unread.values()], default=None),
            read_us=now_us,
        )

    def _chosen(self, rivals: Sequence[Attempt], attempts: Sequence[Attempt]) -> Attempt:
        """Choose of an epoch's attempts as a flusher would that has seen no event (rule 11)."""
        epoch, generation = highest = max(rivals)
        if any(a.epoch > epoch and a.generation == generation for a in attempts):
            return highest  # proven, without a look at the notes
        try:
            notes = tuple(self._log.proofs(epoch))
        except CorruptLog:
            return highest  # the flusher stops at it, and says so
        runs = {a: self._known[a].run_id if a in self._known else "" for a in rivals}
        contenders = tuple(Contender(attempt, run_id, "") for attempt, run_id in runs.items())
        evidence = Evidence(epoch, tuple(attempts), contenders, proofs=notes)
        return max(proven_attempts(evidence, contenders), default=highest)


class BacklogReaders:
    """The readers of a process that publishes, one for each log; a new run begins with a new one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: dict[str, tuple[int, BacklogReader]] = {}

    def of(self, checkpoint: Checkpoint, log: Log, generation: int) -> BacklogReader:
        """Return the reader of a run.

        :param generation: of the run, the highest there is.
        """
        with self._lock:
            known = self._readers.get(log.url)
            if known is None or known[0] != generation:
                known = self._readers[log.url] = generation, BacklogReader(checkpoint, log)
                while len(self._readers) > _READERS_KEPT:
                    del self._readers[next(iter(self._readers))]
            return known[1]


BACKLOGS = BacklogReaders()


def read_backlog(checkpoint: Checkpoint, log: Log) -> Backlog:
    """Count the backlog, with the manifests opened."""
    checkpointed, flushed = checkpoint.last_commit(), flushed_epoch(log)
    return BacklogReader(checkpoint, log).count(checkpointed, flushed, log.attempts())[0]


def pending_epochs(checkpoint: Checkpoint, log: Log) -> int:
    """Count the epochs that are checkpointed and not flushed, without opening their manifests."""
    checkpointed = checkpoint.last_commit()
    return count_epochs(log, checkpointed, flushed_epoch(log))


def count_epochs(log: Log, checkpointed: int, flushed: int) -> int:
    """Count the epochs up to `checkpointed` that are not flushed, from the first that was published on."""
    if checkpointed <= flushed:
        return 0
    if (identity := log.identity()) is None:  # lost, if epochs wait all the same
        return len({a.epoch for a in log.attempts() if flushed < a.epoch <= checkpointed})
    return _between(checkpointed, flushed, identity.first_epoch)


def _between(checkpointed: int, flushed: int, first_epoch: int) -> int:
    return max(0, checkpointed - max(flushed, first_epoch - 1))


def _facts(manifest: Manifest) -> _Facts:
    return _Facts(manifest.run_id, manifest.rows, manifest.bytes, manifest.published_us)
