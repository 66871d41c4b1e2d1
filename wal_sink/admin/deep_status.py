"""`status --deep`: finds every error at which the flush would stop, and changes nothing.

The command reads all pending manifests, segments and plans, and compares their digests. It reads the ledger
row of each target, and decides about the row as a flusher does. Then it compares the plans with the table.
The query may run meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from wal_sink.admin.query import Query, actor, connected, wanted_targets
from wal_sink.errors import MissingManifest, WalSinkError
from wal_sink.flush.pipeline import Pipeline, plan_of
from wal_sink.model.ledger import LedgerRow
from wal_sink.model.manifest import Manifest
from wal_sink.model.state import EpochManifest, State, TargetState
from wal_sink.progress.status import Status, read_status
from wal_sink.protocol import state as protocol
from wal_sink.protocol.flush_decisions import Step, decide
from wal_sink.protocol.refusals import broken_chain, missing_manifest
from wal_sink.wal.location import refuse_other_log, refuse_vanished, store_errors
from wal_sink.wal.manifests import ManifestChain
from wal_sink.wal.segment import check_segment
from wal_sink.wal.store import newest

_MOST_READS = 5
"""How often the log is read at most. If it changes during a read, the findings may be wrong."""

Progress = Callable[[int], object]
"""Called with the number of bytes read so far."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """An error at which the flush would stop."""

    kind: str
    """Name of a class in `wal_sink.errors`."""
    target: str = ""
    """The target whose flush would stop; empty for all targets."""
    epoch: int | None = None
    what: str
    remedy: str
    exit_code: int


class DeepStatus(Status, frozen=True, kw_only=True):
    """The status of a query, and the errors at which its flush would stop."""

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    """What a flusher will do by itself, for example write epochs again to a target that went back."""
    read_epochs: int
    """Number of manifests that were read: one for each epoch that a target lacks."""
    read_bytes: int
    """Size of the segments that were read."""
    ledger: dict[str, int | None]
    """The epoch in the ledger row of each target that was read; None without a row."""


@store_errors()
def deep_status(
    query: Query, name: str = "", progress: Progress = lambda _size: None
) -> DeepStatus:
    """Read everything that is pending, and compare it with the targets.

    :param name: the only target; empty for all targets.
    """
    for _ in range(_MOST_READS):
        inspection, state = _Inspection(query, progress), None
        with inspection.finding():
            refuse_other_log(query.store, query.checkpoint)
            state = newest(query.store)
            if state is None:
                refuse_vanished(query.store, query.checkpoint)
            else:
                protocol.refuse_other_place(state, query.query_id, query.checkpoint.url)
        if state is not None and not inspection.findings:
            inspection.read(state, name)
        if not inspection.findings or newest(query.store) == state:
            break
    status = read_status(query.checkpoint, query.store, name)
    # Findings of the log before those of the targets.
    findings = sorted(inspection.findings, key=lambda f: (bool(f.target), f.epoch or -1))
    return DeepStatus(
        **{field: getattr(status, field) for field in Status.__struct_fields__},
        findings=tuple(findings),
        notes=tuple(inspection.notes),
        read_epochs=len(inspection.plans),
        read_bytes=inspection.bytes,
        ledger={target: row and row.epoch for target, row in inspection.rows.items()},
    )


class _Inspection:
    """One read of a log and its targets, with its findings."""

    def __init__(self, query: Query, progress: Progress) -> None:
        self._query, self._progress = query, progress
        self._store = query.store
        self._chain: dict[int, EpochManifest] = {}
        self.plans: dict[int, str] = {}
        """The key of each epoch's plan, by epoch."""
        self.rows: dict[str, LedgerRow | None] = {}
        """The ledger rows that were read, by target."""
        self.findings: list[Finding] = []
        self.notes: list[str] = []
        self.bytes = 0

    @contextlib.contextmanager
    def finding(self, target: str = "", epoch: int | None = None) -> Iterator[None]:
        """If the block raises an error, add the error to the findings, and continue after the block."""
        try:
            yield
        except WalSinkError as error:
            self._add_finding(error, target, epoch)

    def _add_finding(self, error: WalSinkError, target: str, epoch: int | None) -> None:
        finding = Finding(
            kind=type(error).__name__,
            target=target,
            epoch=epoch,
            what=error.what,
            remedy=error.remedy,
            exit_code=error.exit_code,
        )
        is_known = finding.what in {known.what for known in self.findings}
        # A missing manifest is a finding of the log. The decision about a ledger row fails there, too.
        repeats = isinstance(error, MissingManifest) and any(not f.target for f in self.findings)
        if not is_known and not (target and repeats):
            self.findings.append(finding)

    def read(self, state: State, name: str) -> None:
        """Read what a flusher would read, and collect the findings."""
        committed = self._query.checkpoint.last_commit()
        state = protocol.settle(state, committed, actor()) or state
        wanted = [target for target in wanted_targets(state, name) if name or not target.given_up]
        pipelines = list[Pipeline]()
        with self.finding():  # such as an option that the operator has to give
            pipelines = self._query.pipelines(state, name) if wanted else []
        for pipeline in pipelines:
            with self.finding(pipeline.target_name), connected(pipeline) as connection:
                self.rows[pipeline.target_name] = connection.row()
        last_epochs = {target.name: self._last_epoch(state, target) for target in wanted}
        after = max(min(last_epochs.values(), default=committed), state.trimmed)
        self._read_log(state, committed, after, last_epochs)
        for pipeline in pipelines:
            target_name = pipeline.target_name
            if target_name in self.rows:
                with self.finding(target_name):
                    self._decide(state, committed, pipeline)
                self._compare(pipeline, last_epochs[target_name])

    def _last_epoch(self, state: State, target: TargetState) -> int:
        """Return the last epoch that a target has or skips. The lower of mark and ledger row counts."""
        row = self.rows.get(target.name)
        after = target.mark.epoch if row is None else min(row.epoch, target.mark.epoch)
        given_up = state.epochs_given_up(target.name)
        while after + 1 in given_up:
            after += 1
        return after

    def _read_log(
        self, state: State, committed: int, after: int, last_epochs: Mapping[str, int]
    ) -> None:
        """Read the completed epochs, the newest first, since each manifest names its predecessor.

        :param after: the epoch that every target has.
        :param last_epochs: the last epoch of each target.
        """
        if committed > state.last.epoch:
            missing = state.last.epoch + 1
            self._add_finding(missing_manifest(state, missing), "", missing)
        reader, manifest = ManifestChain(self._store), state.last
        while manifest.epoch > after and manifest.manifest:
            epoch, link = manifest.epoch, manifest.predecessor
            self._chain[epoch] = manifest
            needed_by = [
                name
                for name, last in last_epochs.items()
                if last < epoch <= committed and epoch not in state.epochs_given_up(name)
            ]
            if needed_by:
                with self.finding(epoch=epoch):
                    self._read_epoch(reader.read(manifest), needed_by)
            if epoch - 1 <= after or not link.manifest:
                return
            try:
                manifest = reader.read_link(epoch - 1, link)
            except WalSinkError as error:
                if epoch - 1 > after + 1:  # the epochs before this epoch cannot be found either
                    broken = broken_chain(state, state.slowest, after + 1, epoch - 1)
                    error.remedy = broken.remedy
                self._add_finding(error, "", epoch - 1)
                return

    def _read_epoch(self, manifest: Manifest, targets: Sequence[str]) -> None:
        epoch = manifest.epoch
        self.plans[epoch] = manifest.plan
        for segment in manifest.all_segments:
            with self.finding(epoch=epoch):
                check_segment(self._store, segment)
                self.bytes += segment.bytes
                self._progress(self.bytes)
        for target in targets:
            with self.finding(epoch=epoch):
                plan_of(self._store, target, manifest.plan, epoch)

    def _decide(self, state: State, committed: int, pipeline: Pipeline) -> None:
        """Decide about the ledger row as a flusher does; raise the error that would stop the flush."""
        name = pipeline.target_name
        if committed < protocol.named_target(state, name).first:
            return
        together, row = pipeline.target.restores_together, self.rows[name]
        decision = decide(state, name, committed, row, self._chain, restores_together=together)
        if decision.warning:
            self.notes.append(decision.warning)
        if decision.row is None:
            return
        if decision.step is Step.MARK:
            protocol.mark(state, name, decision.row, self._chain, pipeline.retention, actor())
        if decision.step is Step.WENT_BACK:
            protocol.went_back(state, name, decision.row, self._chain, actor())
            self.notes.append(
                f"Target {name} went back to epoch {decision.row.epoch}. The flusher writes the epochs after"
                " it again, from the log."
            )

    def _compare(self, pipeline: Pipeline, after: int) -> None:
        """Compare the present table with each plan that an epoch after `after` has."""
        name, epochs = pipeline.target_name, sorted(self.plans, reverse=True)
        first = {self.plans[epoch]: epoch for epoch in epochs if epoch > after}
        with self.finding(name), connected(pipeline) as connection:
            for plan, epoch in first.items():
                with self.finding(name, epoch):
                    agreed = plan_of(self._store, name, plan, epoch)
                    with connection.session() as session:
                        session.compare(agreed)
