"""The log of one query: its objects read and written over a state backend.

Knows what each object is for, not when it may be written: that is the business of `publish` (runs),
`flusher` and `trim`. Whatever is created twice keeps its first content.
"""

from __future__ import annotations

from collections.abc import Iterable

from state_backends import StateBackend
from wal_sink import layout
from wal_sink.errors import CorruptLog
from wal_sink.manifest import Attempt, Manifest
from wal_sink.record import digest
from wal_sink.records import Claim, FlushedEpoch, FlusherReport, Kept, LogIdentity, Ticket
from wal_sink.targets.base import Plan


class Log:
    """The folder `<wal.location>/<query id>`.

    :param backend: a state backend whose root is that folder.
    """

    def __init__(self, backend: StateBackend) -> None:
        self.backend = backend

    @property
    def url(self) -> str:
        """Where the log is, for messages."""
        return self.backend.url

    # --- whose log it is (rule 1) ---

    def identity(self) -> LogIdentity | None:
        """Read `log.json`; None before the first publish."""
        data = self._read(layout.LOG)
        return None if data is None else LogIdentity.from_json(data, self._where(layout.LOG))

    def create_identity(self, identity: LogIdentity) -> LogIdentity:
        """Create `log.json` unless it is there; return the one that is there."""
        if (present := self.identity()) is not None:
            return present
        self._create(layout.LOG, identity.to_json())
        present = self.identity()
        if present is None:
            raise CorruptLog(f"{self._where(layout.LOG)} vanished", "Do not edit the log by hand.")
        return present

    # --- who may publish (rules 2 and 3) ---

    def create_ticket(self, ticket: Ticket) -> None:
        """Write a run's ticket, once."""
        self._create(layout.ticket(ticket.run_id), ticket.to_json())

    def ticket(self, run_id: str) -> Ticket | None:
        """Read a run's ticket."""
        path = layout.ticket(run_id)
        data = self._read(path)
        return None if data is None else Ticket.from_json(data, self._where(path))

    def highest_generation(self) -> int:
        """Return the highest generation claimed, 0 for none."""
        claimed = (layout.parse_run(path) for path in self.backend.list(layout.RUNS))
        return max((generation for generation in claimed if generation is not None), default=0)

    def claim(self, generation: int, claim: Claim) -> Claim:
        """Claim a generation unless it is claimed; return the claim that stands."""
        path = layout.run(generation)
        self._create(path, claim.to_json())
        return Claim.from_json(self.backend.read(path), self._where(path))

    # --- what was agreed with the target ---

    def plan(self, key: str) -> Plan | None:
        """Read a plan."""
        path = layout.plan(key)
        data = self._read(path)
        return None if data is None else Plan.from_json(data, self._where(path))

    def create_plan(self, plan: Plan) -> None:
        """Keep a plan."""
        self._create(layout.plan(plan.key), plan.to_json())

    # --- what was published (rule 6) ---

    def attempts(self) -> tuple[Attempt, ...]:
        """List the manifests there are, ascending."""
        parsed = (layout.parse_manifest(path) for path in self.backend.list(layout.MANIFESTS))
        return tuple(sorted(attempt for attempt in parsed if attempt is not None))

    def manifest(self, attempt: Attempt) -> tuple[Manifest, str] | None:
        """Read a manifest and the digest of its file."""
        path = layout.manifest(attempt)
        data = self._read(path)
        if data is None:
            return None
        manifest = Manifest.from_json(data, self._where(path))
        if manifest.attempt != attempt:
            raise CorruptLog(
                f"{self._where(path)} holds the manifest of {manifest.attempt}",
                "Restore the file from a copy; manifests must not be renamed.",
            )
        return manifest, digest(data)

    def create_manifest(self, manifest: Manifest) -> Manifest | None:
        """Create a manifest unless it is there; return the one that is there.

        None when it is gone again: the epoch was flushed from another attempt, and trimmed.
        """
        self._create(layout.manifest(manifest.attempt), manifest.to_json())
        found = self.manifest(manifest.attempt)
        return None if found is None else found[0]

    # --- what Spark kept (rule 11) ---

    def kept(self, epoch: int) -> list[Kept]:
        """Read what fenced runs have left about an epoch."""
        parsed = (layout.parse_kept(path) for path in self.backend.list(layout.KEPT))
        found = []
        for attempt in parsed:
            if attempt is not None and attempt.epoch == epoch:
                path = layout.kept(attempt)
                if (data := self._read(path)) is not None:
                    found.append(Kept.from_json(data, self._where(path)))
        return found

    def create_kept(self, kept: Kept) -> None:
        """Note that Spark kept an attempt, once."""
        self._create(layout.kept(Attempt(kept.epoch, kept.generation)), kept.to_json())

    # --- what is flushed (rule 17) ---

    def newest_flushed(self) -> FlushedEpoch | None:
        """Read the newest record: the flushed mark of the log."""
        parsed = (layout.parse_flushed(path) for path in self.backend.list(layout.FLUSHED))
        newest = max((epoch for epoch in parsed if epoch is not None), default=None)
        return None if newest is None else self.flushed(newest)

    def flushed(self, epoch: int) -> FlushedEpoch | None:
        """Read the record of one epoch; None when it is not flushed, or long ago."""
        path = layout.flushed(epoch)
        data = self._read(path)
        return None if data is None else FlushedEpoch.from_json(data, self._where(path))

    def flushed_since(self, epoch: int) -> list[FlushedEpoch]:
        """Read the records of all epochs above `epoch`, ascending."""
        paths = self.backend.list(layout.FLUSHED)
        parsed = sorted(e for p in paths if (e := layout.parse_flushed(p)) is not None)
        records = (self.flushed(e) for e in parsed if e > epoch)
        return [record for record in records if record is not None]

    def record_flushed(self, record: FlushedEpoch) -> None:
        """Record that an epoch is in the target, once."""
        self._create(layout.flushed(record.epoch), record.to_json())

    # --- hints ---

    def report(self, report: FlusherReport) -> None:
        """Say what the flusher does."""
        self.backend.replace(layout.FLUSHER, report.to_json())

    def last_report(self) -> FlusherReport | None:
        """Read what a flusher said last."""
        data = self._read(layout.FLUSHER)
        return None if data is None else FlusherReport.from_json(data, self._where(layout.FLUSHER))

    # --- plumbing ---

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects; those that are gone already are no error."""
        self.backend.delete(paths)

    def _where(self, path: str) -> str:
        return f"{self.url}/{path}"

    def _read(self, path: str) -> bytes | None:
        try:
            return self.backend.read(path)
        except FileNotFoundError:
            return None

    def _create(self, path: str, data: bytes) -> None:
        try:
            self.backend.create(path, data)
        except FileExistsError:
            return  # the first content stays; callers to whom it matters read it back
