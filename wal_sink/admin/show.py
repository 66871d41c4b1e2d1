"""`show`: lists the epochs in the log, or shows one epoch with its segments and some of its rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Literal

import msgspec

from wal_sink.admin.quarantine import json_value
from wal_sink.admin.query import Query, one_target
from wal_sink.errors import MissingManifest, OptionError, WalSinkError
from wal_sink.flush.pipeline import plan_of
from wal_sink.model import paths
from wal_sink.model.manifest import Manifest, SegmentRef
from wal_sink.model.plan import Column
from wal_sink.units import iso
from wal_sink.wal.location import store_errors
from wal_sink.wal.manifests import ManifestChain
from wal_sink.wal.segment import read_segment
from wal_sink.wal.store import read_object

EpochState = Literal[
    "flushed", "pending", "not checkpointed", "given up", "superseded", "damaged", "no manifest"
]
"""An attempt is `superseded` if another attempt at the epoch is final."""

_UNPROVEN = "A later manifest, which has the digest of this manifest, is damaged or lost."

_FIRST_SOURCE = 2
"""Index of the first line with a source in Spark's offsets file."""


class AttemptDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Source offsets, columns, segments and some rows of an attempt."""

    first_us: int
    """Write timestamp of row 0, microseconds since 1970."""
    offsets: tuple[str, ...]
    """Spark's text for the offset of each source."""
    columns: tuple[Column, ...]
    segments: tuple[SegmentRef, ...]
    """The segments in the manifest, without the rows of small segments."""
    sample: tuple[dict[str, Any], ...]
    """Some rows, with values as `json_value` returns them."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One run's attempt at an epoch. Only `epoch` and `state` are set if the epoch has no attempt."""

    epoch: int
    state: EpochState
    run_id: str | None = None
    published: str | None = None
    """ISO 8601 in UTC."""
    segments: int | None = None
    rows: int | None = None
    refused_rows: int | None = None
    bytes: int | None = None
    problem: str | None = None
    details: AttemptDetails | None = None
    """More about the attempt. None if the command lists several epochs."""


class EpochList(msgspec.Struct, frozen=True, kw_only=True):
    """The epochs that `show` lists, or a single epoch. An epoch id of -1 means that there is no epoch."""

    query_id: str
    target: str
    """The target that the epochs' states are about: the named target, or the slowest."""
    log: str
    checkpointed: int
    flushed: int
    trimmed: int
    """The last epoch whose files are deleted from the log."""
    epochs: tuple[Attempt, ...]
    """The oldest epochs first."""
    left_out: int = 0
    """Number of newer epochs that the list does not have."""


@store_errors()
def show_epochs(
    query: Query, name: str, epoch: int | None = None, *, most: int, rows: int = 0
) -> EpochList:
    """List the epochs in the log, or show one epoch.

    :param name: the target; empty for the slowest target.
    :param epoch: the only epoch to show; None for a list.
    :param most: how many epochs to list at most.
    :param rows: how many rows of the epoch to show at most.
    :raises MissingManifest: the manifest of the epoch is lost.
    :raises OptionError: the epoch was never published, or its files are deleted.
    """
    log = _LogReader(query, name)
    state = log.state
    if epoch is None:
        last = max(state.last.epoch, log.committed)
        epochs = sorted({*range(state.trimmed + 1, last + 1), *log.manifests})
        attempts = [attempt for listed in epochs[:most] for attempt in log.attempts(listed)]
    else:
        epochs, attempts = [], [*log.attempts(epoch, rows)]
        if not log.manifests.get(epoch):
            raise _missing_epoch(epoch, log)
    return EpochList(
        query_id=query.query_id,
        target=log.target.name,
        log=query.store.url,
        checkpointed=log.committed,
        flushed=log.target.flushed,
        trimmed=state.trimmed,
        epochs=tuple(attempts),
        left_out=len(epochs[most:]),
    )


def _missing_epoch(epoch: int, log: _LogReader) -> WalSinkError:
    trimmed, last = log.state.trimmed, log.state.last.epoch
    if trimmed < epoch <= log.committed:
        return MissingManifest(
            f"Epoch {epoch} has no manifest in {log.store.url}.",
            "Run `wal-sink status CHECKPOINT --deep`, which shows the remedy.",
        )
    present = f"epochs {trimmed + 1} to {last}" if last > trimmed else "no epochs"
    return OptionError(
        f"The log has no files of epoch {epoch}.",
        f"Name another epoch. The log has {present}. Epochs up to {trimmed} are flushed, and their files are"
        " deleted.",
    )


class _LogReader:
    """The state of a log and its manifests, read once."""

    def __init__(self, query: Query, name: str) -> None:
        self.store, self.state = query.store, query.state()
        self.committed = query.checkpoint.last_commit()
        self.target = one_target(self.state, name) if name else self.state.slowest
        self._given_up = self.state.epochs_given_up(self.target.name)
        self._reader = ManifestChain(query.store)
        first = self.state.trimmed + 1
        # If the first manifest is damaged, the chain ends, too, and no error is raised.
        self._chain = self._reader.chain(self.state, first - 1, skipped=(first,))
        self.manifests: dict[int, list[str]] = {}
        """The paths of all manifests by epoch, including manifests of other attempts."""
        chained = {manifest.manifest for manifest in self._chain.values() if manifest.manifest}
        for path in sorted({*self.store.list(paths.MANIFEST.folder), *chained}):
            if (parsed := paths.MANIFEST.parse(path)) is not None:
                self.manifests.setdefault(parsed.epoch, []).append(path)

    def attempts(self, epoch: int, rows: int | None = None) -> Iterator[Attempt]:
        """Yield the attempts at an epoch. If no attempt is in the chain, yield the state of the epoch, too.

        :param rows: how many rows to show; None for no details.
        """
        for path in self.manifests.get(epoch, ()):
            state = self._state_of(epoch, path)
            try:
                manifest = self._manifest(epoch, path)
            except WalSinkError as error:
                yield Attempt(epoch=epoch, state="damaged", problem=error.summary)
                continue
            details, problem = None, None
            if rows is not None:
                details, problem = self._details(manifest, rows)
            if state == "damaged":
                problem = problem or _UNPROVEN
            yield Attempt(
                epoch=epoch,
                state=state,
                run_id=manifest.run_id,
                published=iso(manifest.published_us),
                segments=len(manifest.segments),
                rows=manifest.rows,
                refused_rows=manifest.refused_rows,
                bytes=manifest.bytes,
                problem=problem,
                details=details,
            )
        if epoch > self.state.trimmed and epoch not in self._chain:
            is_given_up = epoch in self._given_up
            yield Attempt(epoch=epoch, state="given up" if is_given_up else "no manifest")

    def _details(self, manifest: Manifest, most: int) -> tuple[AttemptDetails, str | None]:
        """Return the details of an attempt, and the error if a part of them cannot be read."""
        columns, sample, problem = tuple[Column, ...](), list[dict[str, Any]](), None
        try:
            if manifest.segments:
                plan = plan_of(self.store, self.target.name, manifest.plan, manifest.epoch)
                columns = plan.columns
            sample += islice(self._rows(manifest), most)
        except WalSinkError as error:
            problem = error.summary
        details = AttemptDetails(
            first_us=manifest.first_us,
            offsets=tuple(manifest.offsets.split("\n")[_FIRST_SOURCE:]),
            columns=columns,
            segments=tuple(segment.without_data() for segment in manifest.segments),
            sample=tuple(sample),
        )
        return details, problem

    def _manifest(self, epoch: int, path: str) -> Manifest:
        """Read a manifest. If the manifest is in the chain, compare it with its digest."""
        if self._is_in_chain(epoch, path):
            return self._reader.read(self._chain[epoch])
        data = read_object(self.store, path)
        if data is None:
            raise MissingManifest(
                f"The manifest {self.store.url}/{path} was deleted during the command.",
                "Run the command again.",
            )
        return Manifest.from_file(data, f"{self.store.url}/{path}")

    def _is_in_chain(self, epoch: int, path: str) -> bool:
        return epoch in self._chain and self._chain[epoch].manifest == path

    def _state_of(self, epoch: int, path: str) -> EpochState:
        if epoch in self._given_up:
            return "given up"
        if not self._is_in_chain(epoch, path):
            is_lost = (
                epoch not in self._chain and self.state.trimmed < epoch <= self.state.last.epoch
            )
            return "damaged" if is_lost else "superseded"
        if epoch <= self.target.mark.epoch:
            return "flushed"
        return "pending" if epoch <= self.committed else "not checkpointed"

    def _rows(self, manifest: Manifest) -> Iterator[dict[str, Any]]:
        for segment in manifest.segments:
            for batch in read_segment(self.store, segment) if segment.rows else ():
                columns = dict(zip(batch.schema.names, batch.columns, strict=True))
                for index in range(batch.num_rows):
                    yield {name: json_value(column[index]) for name, column in columns.items()}
