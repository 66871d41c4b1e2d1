"""`show`: lists the epochs that the log has; or shows one, with its segments and some of its rows.

It changes nothing; the query may run. Values of rows are shown as text that can be printed anywhere.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from itertools import islice
from typing import Literal

import msgspec
import pyarrow as pa

from wal_sink.admin.query import Query, one_target
from wal_sink.clock import iso
from wal_sink.errors import MissingManifest, OptionError, WalSinkError
from wal_sink.flush.pipeline import plan_of
from wal_sink.model import paths
from wal_sink.model.manifest import Manifest, SegmentRef
from wal_sink.model.plan import Column
from wal_sink.model.state import State, TargetState
from wal_sink.text import printable
from wal_sink.wal.location import store_errors
from wal_sink.wal.manifests import ManifestChain
from wal_sink.wal.segment import read_segment

EpochState = Literal[
    "flushed", "pending", "not checkpointed", "given up", "superseded", "damaged", "no manifest"
]
"""`superseded`: another attempt at the epoch is final. `no manifest`: `status --deep` says what to do."""


class EpochLine(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at an epoch, or what is known of the epoch without any."""

    epoch: int
    state: EpochState
    run_id: str | None = None
    segments: int | None = None
    rows: int | None = None
    """None: not known."""
    bytes: int | None = None
    published: str | None = None
    """ISO 8601 in UTC."""
    problem: str | None = None


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """The epochs that the log has; epoch ids are -1 for none."""

    query_id: str
    target: str
    """The one by which epochs are flushed: that was asked for, or the slowest."""
    log: str
    checkpointed: int
    flushed: int
    trimmed: int
    """What the log had of epochs up to this one is deleted."""
    epochs: tuple[EpochLine, ...]
    """Ascending: the oldest ones."""
    left_out: int
    """How many newer epochs there are."""


class SegmentView(msgspec.Struct, frozen=True, kw_only=True):
    """A segment as the manifest names it."""

    path: str
    partition: int | None
    """Of Spark; None for a name that the sink has not given."""
    task_attempt: int | None
    rows: int
    bytes: int
    inline: bool
    """True if the manifest has the bytes: then there is no file."""


class AttemptView(msgspec.Struct, frozen=True, kw_only=True):
    """What one run published as the epoch."""

    state: EpochState
    run_id: str
    published: str
    """ISO 8601 in UTC."""
    rows: int
    bytes: int
    refused_rows: int
    first_us: int
    """Write timestamp of row 0, microseconds since 1970."""
    offsets: tuple[str, ...]
    """Of each source, as Spark writes them."""
    columns: tuple[Column, ...]
    segments: tuple[SegmentView, ...]
    sample: tuple[dict[str, str | None], ...]
    """Some rows, their values as text; None for null."""
    problems: tuple[str, ...]


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """One epoch."""

    query_id: str
    target: str
    log: str
    epoch: int
    checkpointed: bool
    attempts: tuple[AttemptView, ...]
    """Those whose manifests are there."""
    problems: tuple[str, ...]


@store_errors()
def list_epochs(query: Query, name: str, most: int) -> Listed:
    """List the epochs that the log has.

    :param name: of the target; empty: the slowest one.
    :param most: lists at most this number of epochs.
    """
    log = _Log(query, name)
    first, last = log.state.trimmed + 1, max(log.state.last.epoch, log.committed)
    attempts = sorted({*log.others(), *((e, m.manifest) for e, m in log.chain.items())})
    epochs = sorted({*range(first, last + 1), *(epoch for epoch, _ in attempts)})
    shown = epochs[:most]
    lines: list[EpochLine] = []
    for epoch in shown:
        named = [path for other, path in attempts if other == epoch]
        lines += [log.line(epoch, path) for path in named]
        if epoch > log.state.trimmed and epoch not in log.chain:
            given_up = epoch in log.given_up
            lines.append(EpochLine(epoch=epoch, state="given up" if given_up else "no manifest"))
    return Listed(
        query_id=query.query_id,
        target=log.target.name,
        log=query.store.url,
        checkpointed=log.committed,
        flushed=log.target.flushed,
        trimmed=log.state.trimmed,
        epochs=tuple(lines),
        left_out=len(epochs) - len(shown),
    )


@store_errors()
def show_epoch(query: Query, epoch: int, name: str, rows: int) -> Shown:
    """Show one epoch.

    :param rows: how many rows to show. They are read only from whole segments, which are digested first.
    :raises MissingManifest: it is pending, and nothing of it is there.
    :raises OptionError: it was never published, or its files are deleted.
    """
    log = _Log(query, name)
    problems, views = [], []
    named = [path for other, path in log.others() if other == epoch]
    if epoch in log.chain:
        named.append(log.chain[epoch].manifest)
    for path in named:
        try:
            views.append(_view(log, log.manifest(epoch, path), log.state_of(epoch, path), rows))
        except WalSinkError as error:
            problems.append(error.summary)
    if not named and log.state.trimmed < epoch <= log.committed:
        raise MissingManifest(
            f"Epoch {epoch} has no manifest in {query.store.url}.",
            "`wal-sink status CHECKPOINT --deep` says what to do.",
        )
    if not named:
        raise OptionError(
            f"The log has nothing of epoch {epoch}.",
            f"It has epochs {log.state.trimmed + 1} to {log.state.last.epoch}; those before are flushed, and"
            " their files deleted."
            if log.state.last.epoch > log.state.trimmed
            else f"All epochs up to {log.state.trimmed} are flushed, and their files deleted.",
        )
    return Shown(
        query_id=query.query_id,
        target=log.target.name,
        log=query.store.url,
        epoch=epoch,
        checkpointed=epoch <= log.committed,
        attempts=tuple(views),
        problems=tuple(problems),
    )


class _Log:
    """A log as it is read for one call."""

    def __init__(self, query: Query, name: str) -> None:
        self.store = query.store
        self.state: State = query.state()
        self.committed = query.checkpoint.last_commit()
        self.target: TargetState = one_target(self.state, name) if name else self.state.slowest
        self.given_up = self.state.epochs_given_up(self.target.name)
        self._reader = ManifestChain(query.store)
        self.problem = ""
        """Why the chain ends, if a manifest is damaged."""
        try:
            self.chain = self._reader.chain(self.state, self.state.trimmed)
        except WalSinkError as error:
            self.problem = error.summary
            self.chain = {self.state.last.epoch: self.state.last}

    def others(self) -> list[tuple[int, str]]:
        """List manifests that no newer one leads to: superseded ones, those given up, and what is damaged."""
        chained = {manifest.manifest for manifest in self.chain.values()}
        listed = self.store.list(paths.MANIFEST.folder)
        names = ((path, paths.MANIFEST.parse(path)) for path in listed)
        return [(name.epoch, path) for path, name in names if name and path not in chained]

    def manifest(self, epoch: int, path: str) -> Manifest:
        """Read a manifest; one of the chain is compared with its digest.

        :raises MissingManifest, CorruptLog: it is gone, or damaged.
        """
        if epoch in self.chain and self.chain[epoch].manifest == path:
            return self._reader.read(self.chain[epoch]).manifest
        data = self.store.read(path)
        if data is None:
            raise MissingManifest(f"{self.store.url_of(path)} is gone.", "Run the command again.")
        return Manifest.from_file(data, self.store.url_of(path)).manifest

    def state_of(self, epoch: int, path: str) -> EpochState:
        """Return the state of an attempt."""
        if epoch in self.given_up:
            return "given up"
        if epoch not in self.chain or self.chain[epoch].manifest != path:
            return "damaged" if self.problem and epoch not in self.chain else "superseded"
        if epoch <= self.target.mark.epoch:
            return "flushed"
        return "pending" if epoch <= self.committed else "not checkpointed"

    def line(self, epoch: int, path: str) -> EpochLine:
        """Return the line of an attempt."""
        try:
            manifest = self.manifest(epoch, path)
        except WalSinkError as error:
            return EpochLine(epoch=epoch, state="damaged", problem=error.summary)
        state = self.state_of(epoch, path)
        return EpochLine(
            epoch=epoch,
            state=state,
            run_id=manifest.run_id,
            segments=len(manifest.segments),
            rows=manifest.rows,
            bytes=manifest.bytes,
            published=iso(manifest.published_us),
            problem=self.problem if state == "damaged" else None,
        )


_SOURCES = 2
"""The first line of Spark's offsets file about a source."""


def _view(log: _Log, manifest: Manifest, state: EpochState, rows: int) -> AttemptView:
    problems: list[str] = []
    columns: tuple[Column, ...] = ()
    sample: tuple[dict[str, str | None], ...] = ()
    try:
        if manifest.segments:
            columns = plan_of(log.store, log.target.name, manifest.plan, manifest.epoch).columns
        sample = tuple(islice(_sample(log, manifest), rows))
    except WalSinkError as error:
        problems.append(error.summary)
    return AttemptView(
        state=state,
        run_id=manifest.run_id,
        published=iso(manifest.published_us),
        rows=manifest.rows,
        bytes=manifest.bytes,
        refused_rows=manifest.refused_rows,
        first_us=manifest.first_us,
        offsets=tuple(manifest.offsets.split("\n")[_SOURCES:]),
        columns=columns,
        segments=tuple(map(_segment, manifest.segments)),
        sample=sample,
        problems=tuple(problems),
    )


def _segment(ref: SegmentRef) -> SegmentView:
    name = paths.SEGMENT.parse(ref.path)
    return SegmentView(
        path=ref.path,
        partition=name and name.partition,
        task_attempt=name and name.task_attempt,
        rows=ref.rows,
        bytes=ref.bytes,
        inline=not ref.is_file,
    )


def _sample(log: _Log, manifest: Manifest) -> Iterator[dict[str, str | None]]:
    """Yield the rows of an attempt as texts.

    :raises MissingSegment, CorruptLog: a segment that holds them is gone, or damaged.
    """
    for ref in manifest.segments:
        for batch in read_segment(log.store.backend, ref) if ref.rows else ():
            for index in range(batch.num_rows):
                row = batch.slice(index, 1)
                yield {name: value_text(row.column(name)[0]) for name in row.schema.names}


_UUID = pa.binary(16)
_MOST_CHARACTERS = 80
"""Characters after which a value is cut."""


def value_text(value: pa.Scalar) -> str | None:
    """Return a value as text; None for null.

    Control characters are escaped. Bytes are in hexadecimal, or a uuid where the type has 16 of them. A long
    text is cut, with `…` at its end.
    """
    if not value.is_valid:
        return None
    try:
        plain = value.as_py()
    except (ValueError, OverflowError):  # a date or time that Python does not have
        return _of_arrow(value)
    if value.type == _UUID:
        return str(uuid.UUID(bytes=plain))
    if isinstance(plain, bytes):
        return _cut("0x" + plain[:_MOST_CHARACTERS].hex())
    return printable(_cut(str(plain)))


def _of_arrow(value: pa.Scalar) -> str:
    try:
        return str(value.cast(pa.string()).as_py())
    except pa.ArrowException:  # it is inside of a list or a struct
        return f"(a {value.type} that cannot be shown)"


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1] + "…"
