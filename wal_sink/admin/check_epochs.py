"""Checks epochs that are not flushed yet: manifests, plans, and each segment to the last byte."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from wal_sink.admin.findings import Findings
from wal_sink.admin.query import Query
from wal_sink.errors import MissingManifest, MissingSegment
from wal_sink.flush.choose_window import WindowChooser
from wal_sink.flush.read_window import FileGoneError, begun_manifest, plan_of
from wal_sink.model import paths
from wal_sink.model.ledger import BegunEpoch, Window
from wal_sink.model.manifest import Attempt, Manifest, SegmentRef
from wal_sink.model.plan import Plan
from wal_sink.progress.given_up import given_up_since_begun
from wal_sink.protocol.choose_attempt import refuse_missing_manifest
from wal_sink.protocol.steps import Begin, Choose, ManifestMissing, PassOver
from wal_sink.remedies import lost_segment, skip_lost
from wal_sink.wal.aside import names_aside
from wal_sink.wal.segment import check_segment


class EpochCheck:
    """Checks what a flusher would read.

    :param attempts: the manifests there are.
    :param progress: told how many bytes of how many are read.
    """

    def __init__(
        self,
        query: Query,
        attempts: Sequence[Attempt],
        findings: Findings,
        progress: Callable[[int, int], None],
    ) -> None:
        self._query = query
        self._log = query.log
        self._attempts = tuple(attempts)
        self._findings = findings
        self._progress = progress
        self._chooser = WindowChooser(query.log, query.checkpoint, query.query_id)
        self._aside: frozenset[str] = frozenset()
        self.segments = 0
        self.bytes = 0
        self.plans: list[tuple[int, Plan]] = []
        """The plans of the epochs that are needed, each with the first of them."""

    def check(self, epochs: Sequence[int], checkpointed: int, begun: Window | None) -> None:
        """Check epochs, ascending.

        :param begun: what the ledger says is begun: then only that attempt counts (rule 10).
        """
        decided = {epoch.epoch: epoch for epoch in begun.epochs} if begun else {}
        needed: list[tuple[Manifest, bool]] = []
        missing: list[int] = []
        given_up = set(self._log.decided())
        self._aside = names_aside(self._log)
        for epoch in epochs:
            if epoch in given_up and self._is_given_up(epoch, begun):
                continue
            if epoch in decided:
                needed += self._without_data(self._begun(decided[epoch]), begun=True)
            else:
                found = self._manifests(epoch, missing if epoch <= checkpointed else None)
                needed += self._without_data(found, begun=False)
        self._missing(missing)
        self._read(needed)

    def _is_given_up(self, epoch: int, begun: Window | None) -> bool:
        """Whether a decision about an epoch is in force; else what was published before it does not count."""
        with self._findings.noting(epoch, self._log.where(paths.decision(epoch))):
            if begun is not None and begun.first <= epoch <= begun.last:
                given_up = given_up_since_begun(self._log, begun)
                return not begun.epochs[epoch - begun.first].manifest or epoch in given_up
            decision, step = self._chooser.since_decided(Choose(epoch, self._attempts))
            self._attempts = step.attempts
            return decision is not None
        return True  # it is unreadable: a flusher would stop there

    def _begun(self, begun: BegunEpoch) -> list[Manifest]:
        self._readable(begun.epoch)
        with self._findings.noting(begun.epoch, f"{self._log.url}/{begun.manifest}"):
            try:
                return [begun_manifest(self._log, begun)] if begun.manifest else []
            except FileGoneError as gone:
                if gone.path in self._aside:  # a flusher brings it back
                    return []
                raise MissingSegment(
                    f"Epoch {begun.epoch} is begun and needs {gone.path}, which is gone",
                    lost_segment(begun.epoch, begun=True),
                ) from gone
        return []

    def _manifests(self, epoch: int, missing: list[int] | None) -> list[Manifest]:
        """Return what may be flushed as an epoch.

        :param missing: where to put an epoch that has nothing; None when it is not checkpointed.
        """
        readable = self._readable(epoch)
        if readable is None:
            return []  # a finding already: a flusher would stop there
        if missing is None:
            return readable
        with self._findings.noting(epoch):
            match self._chooser.epoch(Choose(epoch, self._attempts)):
                case Begin(attempts):
                    return [found for found in readable if found.attempt in attempts]
                case ManifestMissing():
                    if epoch not in {a.epoch for a in map(paths.parse_manifest, self._aside) if a}:
                        missing.append(epoch)
                case PassOver():
                    return []
            return readable
        return []

    def _readable(self, epoch: int) -> list[Manifest] | None:
        """Read every manifest of an epoch; None when one of them cannot be used."""
        found, whole = [], True
        for attempt in self._attempts:
            if attempt.epoch != epoch:
                continue
            read = None
            before = len(self._findings.found)
            with self._findings.noting(epoch, f"{self._log.url}/{paths.manifest(attempt)}"):
                read = self._log.manifest(attempt)
            whole = whole and len(self._findings.found) == before
            if read is not None:  # else it was trimmed meanwhile
                found.append(read[0])
        return found if whole else None

    def _missing(self, epochs: list[int]) -> None:
        """Report epochs without a manifest; a whole folder that is lost is one finding."""
        for _, run in groupby(enumerate(epochs), key=lambda item: item[1] - item[0]):
            first, *others = [epoch for _, epoch in run]
            file = f"{self._log.url}/{paths.MANIFESTS}"
            with self._findings.noting(first, file):
                if others:
                    raise MissingManifest(
                        f"Epochs {first} to {others[-1]} are checkpointed but have no manifest in the log",
                        "Restore the log's manifests/ folder from a copy. To give their rows up, one"
                        f" after the other: {skip_lost(first)}.",
                    )
                refuse_missing_manifest(first, None)

    def _without_data(
        self, manifests: list[Manifest], *, begun: bool
    ) -> list[tuple[Manifest, bool]]:
        """Check the rows that manifests hold, and let them go: thousands may wait."""
        for manifest in manifests:
            for segment in manifest.all_segments:
                if not segment.is_file:
                    self._segment(manifest, segment, lambda _size: None, begun=begun)
        return [(manifest.without_data(), begun) for manifest in manifests]

    def _read(self, needed: list[tuple[Manifest, bool]]) -> None:
        total = sum(segment.bytes for manifest, _ in needed for segment in manifest.files)
        done = 0

        def read(size: int) -> None:
            nonlocal done
            done += size
            self._progress(done, total)

        plans: set[str] = set()
        for manifest, begun in needed:
            if manifest.plan not in plans:
                plans.add(manifest.plan)
                file = self._log.where(paths.plan(manifest.plan))
                with self._findings.noting(manifest.epoch, file):
                    self.plans.append((manifest.epoch, plan_of(self._log, manifest)))
            for segment in manifest.files:
                self._segment(manifest, segment, read, begun=begun)

    def _segment(
        self, manifest: Manifest, segment: SegmentRef, read: Callable[[int], None], *, begun: bool
    ) -> None:
        epoch = manifest.epoch
        file = segment.path if segment.is_file else paths.manifest(manifest.attempt)
        with self._findings.noting(epoch, f"{self._log.url}/{file}"):
            try:
                check_segment(self._log.backend, segment, read)
            except FileNotFoundError as error:
                if segment.path in self._aside:
                    return
                raise MissingSegment(
                    f"Epoch {epoch} needs {segment.path}, which is gone from {self._log.url}",
                    lost_segment(epoch, begun=begun),
                ) from error
        self.segments += 1
        self.bytes += segment.bytes
