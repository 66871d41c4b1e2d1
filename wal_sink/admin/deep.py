"""`status --deep`: says before the flush meets it what would stop it. Changes nothing; the query may run.

It reads every pending manifest and segment by its digest, and every plan. Unless it is offline, it reads the
ledger row, asks the functions of the protocol what a flusher would do with it, and compares plan and table.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from wal_sink.admin.query import Query, actor, connected
from wal_sink.errors import MissingManifest, WalSinkError
from wal_sink.flush.pipeline import Pipeline, plan_of
from wal_sink.model.ledger import LedgerRow
from wal_sink.model.manifest import Manifest
from wal_sink.model.state import EpochManifest, State, TargetState
from wal_sink.progress.status import Status, read_status
from wal_sink.protocol import state as protocol
from wal_sink.protocol.flush_order import Step, decide
from wal_sink.protocol.refusals import broken_chain, missing_manifest
from wal_sink.wal.location import refuse_other_log, refuse_vanished, store_errors
from wal_sink.wal.manifests import ManifestChain
from wal_sink.wal.segment import check_segment
from wal_sink.wal.states import newest

_READS = 5
"""How often all is read at most, while findings may come of a log that changes meanwhile."""

Read = Callable[[int], None]
"""Called with how many bytes were read so far."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """An error that would stop the flush."""

    kind: str
    """Name of a class in `wal_sink.errors`."""
    target: str = ""
    """The only target that it stops; empty: all."""
    epoch: int | None = None
    what: str
    remedy: str
    exit_code: int


class DeepStatus(Status, frozen=True, kw_only=True):
    """The status of a query, and what would stop its flush."""

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    """What the flusher will do by itself, such as bring epochs again to a target that went back."""
    read_epochs: int
    """Manifests that were read: those of the epochs that a target lacks."""
    read_bytes: int
    """Bytes of their segments."""
    ledger: dict[str, int | None]
    """The epoch of each target's ledger row; None: there is none, or it was not read."""


@store_errors()
def deep_status(
    query: Query, name: str = "", *, offline: bool = False, progress: Read = lambda _size: None
) -> DeepStatus:
    """Read all that is pending, and compare it with the targets.

    :param name: of the only target to report on; empty: all.
    :param offline: no target is asked.
    :raises CheckpointNotVisible: no query's checkpoint is there.
    :raises OptionError: the target cannot be asked with these options.
    """
    for _ in range(_READS):
        inspection, state = _Inspection(query, progress), None
        with inspection.finding():
            refuse_other_log(query.store, query.checkpoint)
            state = newest(query.store)
            if state is None:
                refuse_vanished(query.store, query.checkpoint)
            else:
                protocol.refuse_other_place(state, query.query_id, query.checkpoint.url)
        if state is not None and not inspection.findings:
            inspection.read(state, name, offline=offline)
        # A finding may come of an older state: a flusher trims while this reads.
        if not inspection.findings or newest(query.store) == state:
            break
    status = read_status(query.checkpoint, query.store, name)
    return DeepStatus(
        **{field: getattr(status, field) for field in Status.__struct_fields__},
        findings=inspection.findings,
        notes=tuple(inspection.notes),
        read_epochs=inspection.epochs,
        read_bytes=inspection.bytes,
        ledger=inspection.ledger,
    )


class _Inspection:
    """Reads a log and its targets once, and collects what would stop a flusher."""

    def __init__(self, query: Query, progress: Read) -> None:
        self._query, self._progress = query, progress
        self._store = query.store
        self._chain: dict[int, EpochManifest] = {}
        self._plans: dict[int, str] = {}
        """Keys of the plans of the epochs that were read, by epoch."""
        self._rows: dict[str, LedgerRow | None] = {}
        """Ledger rows that were read, by target."""
        self._in_log: list[Finding] = []
        self._in_targets: list[Finding] = []
        self.notes: list[str] = []
        self.bytes = 0

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Those in the log by epoch, then those in the targets."""
        by_epoch = sorted(self._in_log, key=lambda f: -1 if f.epoch is None else f.epoch)
        return (*by_epoch, *self._in_targets)

    @property
    def epochs(self) -> int:
        """How many manifests were read."""
        return len(self._plans)

    @property
    def ledger(self) -> dict[str, int | None]:
        """The epochs of the ledger rows that were read, by target."""
        return {name: row and row.epoch for name, row in self._rows.items()}

    @contextlib.contextmanager
    def finding(self, target: str = "", epoch: int | None = None) -> Iterator[None]:
        """Take an error of the block as a finding."""
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
        # The decision about a ledger row meets again what the log lacks.
        known = {finding.what for finding in self.findings}
        gaps = isinstance(error, MissingManifest) and self._in_log
        if finding.what not in known and not (target and gaps):
            (self._in_targets if target else self._in_log).append(finding)

    def read(self, state: State, name: str, *, offline: bool) -> None:
        """Read what a flusher would read."""
        committed = self._query.checkpoint.last_commit()
        state = protocol.settle(state, committed, actor()) or state
        wanted = [protocol.named_target(state, name)] if name else list(state.live)
        pipelines = [] if offline or not wanted else self._query.pipelines(state, name)
        for pipeline in pipelines:
            with self.finding(pipeline.target_name), connected(pipeline) as connection:
                self._rows[pipeline.target_name] = connection.row()
        lacking = {target.name: self._lacks_after(state, target) for target in wanted}
        after = max(min(lacking.values(), default=committed), state.trimmed)
        self._read_log(state, committed, after, lacking)
        for pipeline in pipelines:
            if pipeline.target_name in self._rows:
                with self.finding(pipeline.target_name):
                    self._decide(state, committed, pipeline)
                self._compare(pipeline, lacking[pipeline.target_name])

    def _lacks_after(self, state: State, target: TargetState) -> int:
        """Return the epoch after which a target needs the log, by its mark and by its ledger row."""
        row = self._rows.get(target.name)
        after = target.mark.epoch if row is None else min(row.epoch, target.mark.epoch)
        given_up = state.epochs_given_up(target.name)
        while after + 1 in given_up:
            after += 1
        return after

    def _read_log(
        self, state: State, committed: int, after: int, lacking: Mapping[str, int]
    ) -> None:
        """Read completed epochs from the newest one down: each manifest names the one before."""
        if committed > state.last.epoch:
            with self.finding(epoch=state.last.epoch + 1):
                raise missing_manifest(state, state.last.epoch + 1)
        reader, manifest = ManifestChain(self._store), state.last
        while manifest.epoch > after and manifest.manifest:
            epoch, link = manifest.epoch, manifest.predecessor
            self._chain[epoch] = manifest
            needs = [
                name
                for name, last in lacking.items()
                if last < epoch <= committed and epoch not in state.epochs_given_up(name)
            ]
            if needs:
                with self.finding(epoch=epoch):
                    self._read_epoch(reader.read(manifest).manifest, needs)
            if epoch - 1 <= after or not link.manifest:
                return
            try:
                manifest = reader.named(epoch - 1, link)
            except WalSinkError as error:
                remedy = error.remedy
                if (
                    epoch - 1 > after + 1
                ):  # nobody names the epochs before, so they cannot be given up
                    remedy = broken_chain(state, state.slowest, after + 1, epoch - 1).remedy
                self._add_finding(type(error)(error.what, remedy), "", epoch - 1)
                return

    def _read_epoch(self, manifest: Manifest, targets: Sequence[str]) -> None:
        """Read the segments and plans of an epoch."""
        self._plans[manifest.epoch] = manifest.plan
        for segment in manifest.all_segments:
            with self.finding(epoch=manifest.epoch):
                check_segment(self._store.backend, segment)
                self.bytes += segment.bytes
                self._progress(self.bytes)
        for target in targets:
            with self.finding(epoch=manifest.epoch):
                plan_of(self._store, target, manifest.plan, manifest.epoch)

    def _decide(self, state: State, committed: int, pipeline: Pipeline) -> None:
        """Do what a flusher would do with the ledger row, up to the change.

        :raises WalSinkError: the flusher would stop.
        """
        name = pipeline.target_name
        if committed < protocol.named_target(state, name).first:
            return
        heals = pipeline.target.restores_together
        decision = decide(state, name, committed, self._rows[name], self._chain, heals=heals)
        if decision.warning:
            self.notes.append(decision.warning)
        if decision.step is Step.MARK and decision.row is not None:
            protocol.mark(state, name, decision.row, self._chain, pipeline.retention, actor())
        if decision.step is Step.WENT_BACK and decision.row is not None:
            protocol.went_back(state, name, decision.row, self._chain, actor())
            self.notes.append(
                f"Target {name} went back to epoch {decision.row.epoch}. The flush brings the epochs after it"
                " again, from the log."
            )

    def _compare(self, pipeline: Pipeline, after: int) -> None:
        """Compare each pending plan with the table as it is now."""
        name = pipeline.target_name
        first = {
            plan: epoch
            for epoch, plan in sorted(self._plans.items(), reverse=True)
            if epoch > after
        }
        with self.finding(name), connected(pipeline) as connection:
            for plan, epoch in first.items():
                with self.finding(name, epoch):
                    agreed = plan_of(self._store, name, plan, epoch)
                    with connection.session() as session:
                        session.compare(agreed)
