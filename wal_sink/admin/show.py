"""`show`: lists the epochs that the log has; or shows one, with its segments and some of its rows.

It changes nothing; the query may run.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Literal

import msgspec

from wal_sink.admin.quarantine import json_value
from wal_sink.admin.query import Query, one_target
from wal_sink.clock import iso
from wal_sink.errors import MissingManifest, OptionError, WalSinkError
from wal_sink.flush.pipeline import plan_of
from wal_sink.model import paths
from wal_sink.model.manifest import Manifest, SegmentRef
from wal_sink.model.plan import Column
from wal_sink.wal.location import store_errors
from wal_sink.wal.manifests import ManifestChain
from wal_sink.wal.segment import read_segment

EpochState = Literal[
    "flushed", "pending", "not checkpointed", "given up", "superseded", "damaged", "no manifest"
]
"""`superseded`: another attempt at the epoch is final. `no manifest`: `status --deep` says what to do."""

_SOURCES = 2
"""The first line of Spark's offsets file about a source."""


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """What else an attempt has."""

    first_us: int
    """Write timestamp of row 0, microseconds since 1970."""
    offsets: tuple[str, ...]
    """Of each source, as Spark writes them."""
    columns: tuple[Column, ...]
    segments: tuple[SegmentRef, ...]
    """As the manifest names them; one with `data` has no file."""
    sample: tuple[dict[str, Any], ...]
    """Some rows, as `json_value` has them."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """What one run published as an epoch, or what is known of an epoch without an attempt."""

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
    details: Details | None = None
    """If one epoch was asked for."""


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """The epochs that the log has, or one of them; epoch ids are -1 for none."""

    query_id: str
    target: str
    """The one by which epochs are flushed: that was asked for, or the slowest."""
    log: str
    checkpointed: int
    flushed: int
    trimmed: int
    """What the log had of epochs up to this one is deleted."""
    epochs: tuple[Attempt, ...]
    """Ascending: the oldest ones."""
    left_out: int = 0
    """How many newer epochs there are."""


@store_errors()
def show_epochs(
    query: Query, name: str, epoch: int | None = None, *, most: int, rows: int = 0
) -> Shown:
    """List the epochs that the log has, or show one.

    :param name: of the target; empty: the slowest one.
    :param most: lists at most this number of epochs.
    :param rows: how many rows of one epoch to show. They are read only from whole segments, which are
        digested first.
    :raises MissingManifest: the epoch is pending, and nothing of it is there.
    :raises OptionError: the epoch was never published, or its files are deleted.
    """
    log = _Log(query, name)
    state = log.state
    if epoch is None:
        last = max(state.last.epoch, log.committed)
        epochs = sorted({*range(state.trimmed + 1, last + 1), *log.manifests})
        attempts = [attempt for listed in epochs[:most] for attempt in log.attempts(listed)]
    else:
        epochs, attempts = [], [*log.attempts(epoch, rows)]
        if not log.manifests.get(epoch):
            raise _nothing_of(epoch, log)
    return Shown(
        query_id=query.query_id,
        target=log.target.name,
        log=query.store.url,
        checkpointed=log.committed,
        flushed=log.target.flushed,
        trimmed=state.trimmed,
        epochs=tuple(attempts),
        left_out=len(epochs[most:]),
    )


def _nothing_of(epoch: int, log: _Log) -> WalSinkError:
    trimmed, last = log.state.trimmed, log.state.last.epoch
    if trimmed < epoch <= log.committed:
        return MissingManifest(
            f"Epoch {epoch} has no manifest in {log.store.url}.",
            "`wal-sink status CHECKPOINT --deep` says what to do.",
        )
    has = f"It has epochs {trimmed + 1} to {last}" if last > trimmed else "It has no epoch now"
    return OptionError(
        f"The log has nothing of epoch {epoch}.",
        f"{has}; those up to {trimmed} are flushed, and their files deleted.",
    )


class _Log:
    """A log as it is read for one call."""

    def __init__(self, query: Query, name: str) -> None:
        self.store, self.state = query.store, query.state()
        self.committed = query.checkpoint.last_commit()
        self.target = one_target(self.state, name) if name else self.state.slowest
        self._given_up = self.state.epochs_given_up(self.target.name)
        self._reader = ManifestChain(query.store)
        self._problem: str | None = None
        """Why the chain ends, if a manifest is damaged."""
        try:
            self._chain = self._reader.chain(self.state, self.state.trimmed)
        except WalSinkError as error:
            self._problem = error.summary
            self._chain = {self.state.last.epoch: self.state.last}
        self.manifests: dict[int, list[str]] = {}
        """Paths by epoch: those of the chain, and those to which no newer one leads."""
        chained = {manifest.manifest for manifest in self._chain.values() if manifest.manifest}
        for path in sorted({*self.store.list(paths.MANIFEST.folder), *chained}):
            if (parsed := paths.MANIFEST.parse(path)) is not None:
                self.manifests.setdefault(parsed.epoch, []).append(path)

    def attempts(self, epoch: int, rows: int | None = None) -> Iterator[Attempt]:
        """Yield the attempts at an epoch, and what is known of it if the chain has none.

        :param rows: how many rows to show; None: no details.
        """
        for path in self.manifests.get(epoch, ()):
            state = self._state_of(epoch, path)
            try:
                manifest = self._manifest(epoch, path)
            except WalSinkError as error:
                yield Attempt(epoch=epoch, state="damaged", problem=error.summary)
                continue
            problem, details = self._problem if state == "damaged" else None, None
            if rows is not None:
                details, problem = self._details(manifest, rows)
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

    def _details(self, manifest: Manifest, most: int) -> tuple[Details, str | None]:
        """Return the details of an attempt, and why some of them are missing."""
        columns, sample, problem = tuple[Column, ...](), list[dict[str, Any]](), None
        try:
            if manifest.segments:
                plan = plan_of(self.store, self.target.name, manifest.plan, manifest.epoch)
                columns = plan.columns
            sample += islice(self._rows(manifest), most)
        except WalSinkError as error:
            problem = error.summary
        details = Details(
            first_us=manifest.first_us,
            offsets=tuple(manifest.offsets.split("\n")[_SOURCES:]),
            columns=columns,
            segments=tuple(segment.without_data() for segment in manifest.segments),
            sample=tuple(sample),
        )
        return details, problem

    def _manifest(self, epoch: int, path: str) -> Manifest:
        """Read a manifest; one of the chain is compared with its digest."""
        if self._is_in_chain(epoch, path):
            return self._reader.read(self._chain[epoch]).manifest
        data = self.store.read(path)
        if data is None:
            raise MissingManifest(f"{self.store.url_of(path)} is gone.", "Run the command again.")
        return Manifest.from_file(data, self.store.url_of(path)).manifest

    def _is_in_chain(self, epoch: int, path: str) -> bool:
        return epoch in self._chain and self._chain[epoch].manifest == path

    def _state_of(self, epoch: int, path: str) -> EpochState:
        if epoch in self._given_up:
            return "given up"
        if not self._is_in_chain(epoch, path):
            return "damaged" if self._problem and epoch not in self._chain else "superseded"
        if epoch <= self.target.mark.epoch:
            return "flushed"
        return "pending" if epoch <= self.committed else "not checkpointed"

    def _rows(self, manifest: Manifest) -> Iterator[dict[str, Any]]:
        """Yield the rows of an attempt.

        :raises MissingSegment, CorruptLog: a segment that holds them is gone, or damaged.
        """
        for segment in manifest.segments:
            for batch in read_segment(self.store.backend, segment) if segment.rows else ():
                columns = dict(zip(batch.schema.names, batch.columns, strict=True))
                for index in range(batch.num_rows):
                    yield {name: json_value(column[index]) for name, column in columns.items()}
