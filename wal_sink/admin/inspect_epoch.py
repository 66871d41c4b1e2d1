"""`inspect` of one epoch: shows its attempts, their segments, schema and source offsets, and some rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import msgspec
import pyarrow as pa

from wal_sink.admin.inspect import State, read_standing, states
from wal_sink.admin.query import Query
from wal_sink.admin.value_text import value_text
from wal_sink.clock import iso
from wal_sink.errors import MissingSegment, OptionError, WalSinkError
from wal_sink.flush.read_window import plan_of
from wal_sink.model import paths
from wal_sink.model.ledger import BegunEpoch, Window
from wal_sink.model.manifest import Attempt, Manifest, SegmentRef
from wal_sink.model.plan import Column
from wal_sink.model.records import Decision, FlushedEpoch
from wal_sink.progress.given_up import newest_decision
from wal_sink.protocol.choose_attempt import refuse_missing_manifest
from wal_sink.remedies import lost_segment
from wal_sink.wal.segment import read_segment

_SOURCES = 2
"""Line of Spark's offsets file from which on it is about the sources."""


class SegmentView(msgspec.Struct, frozen=True, kw_only=True):
    """A segment as the manifest names it."""

    path: str
    partition: int | None
    """Of Spark; None for a name that the sink has not given."""
    task_attempt: int | None
    rows: int
    bytes: int
    inline: bool
    """Whether the manifest has the bytes: then there is no file."""


class AttemptView(msgspec.Struct, frozen=True, kw_only=True):
    """What one run published for the epoch."""

    generation: int
    state: State | None
    """None where that cannot be told, see `problems`."""
    run_id: str
    published: str
    """ISO 8601 in UTC."""
    rows: int
    bytes: int
    offsets: tuple[str, ...]
    """Of each source, as Spark writes them."""
    columns: tuple[Column, ...]
    segments: tuple[SegmentView, ...]
    sample: tuple[dict[str, str | None], ...]
    """Some rows, their values as text; None for null."""
    problems: tuple[str, ...]


class InspectedEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an epoch."""

    query_id: str
    checkpoint: str
    log: str
    epoch: int
    checkpointed: bool
    flushed: FlushedEpoch | None
    """Its record; None also when it was flushed long ago."""
    begun: BegunEpoch | None
    """As the ledger says, if it was asked."""
    decision: Decision | None
    attempts: tuple[AttemptView, ...]
    """Those whose manifests are there."""
    problems: tuple[str, ...]


def inspect_epoch(
    query: Query,
    epoch: int,
    begun: Window | None,
    rows: int,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> InspectedEpoch:
    """Look at one epoch.

    :param begun: what the ledger says is begun.
    :param rows: how many rows to show of each attempt. They are read only from whole segments, which
        are digested first.
    :param progress: told how many bytes of how many are read.
    :raises MissingManifest: it is checkpointed, not flushed, and there is nothing of it.
    :raises OptionError: it was never published, or was flushed long ago.
    """
    checkpointed = query.checkpoint.last_commit()
    standing = read_standing(query, checkpointed, begun)
    record, decision = query.log.flushed(epoch), newest_decision(query.log, epoch)
    problems, views = [], []
    known: dict[Attempt, State] = {}
    if record is None:
        try:
            known = states(query, epoch, standing)
        except WalSinkError as error:
            problems.append(error.summary)
    attempts = {attempt for attempt in standing.attempts if attempt.epoch == epoch}
    if record is not None:
        attempts.add(Attempt(epoch, record.generation))  # it may be retained
    for attempt in sorted(attempts):
        try:
            found = query.log.manifest(attempt)
        except WalSinkError as error:
            problems.append(error.summary)
            continue
        if found is not None:
            state = _left_over(attempt, record) if record else known.get(attempt)
            views.append(_view(query, found[0], state, rows, progress))
    if not (record or decision or views or problems):
        _nothing_there(query, epoch, checkpointed)
    return InspectedEpoch(
        query_id=query.query_id,
        checkpoint=query.checkpoint.url,
        log=query.log.url,
        epoch=epoch,
        checkpointed=epoch <= checkpointed,
        flushed=record,
        begun=next((one for one in begun.epochs if one.epoch == epoch), None) if begun else None,
        decision=decision,
        attempts=tuple(views),
        problems=tuple(problems),
    )


def _nothing_there(query: Query, epoch: int, checkpointed: int) -> None:
    """Say why there is nothing to show.

    :raises MissingManifest, OptionError: always.
    """
    flushed = query.log.flushed_epochs()
    newest = max(flushed, default=-1)
    identity = query.log.identity()
    if identity is not None and max(newest, identity.first_epoch - 1) < epoch <= checkpointed:
        refuse_missing_manifest(epoch, None)
    raise OptionError(
        f"Nothing is known of epoch {epoch} in {query.log.url}",
        f"Records are kept of the flushed epochs {flushed[0]} to {newest}."
        if flushed
        else "Without EPOCH, inspect lists what is there.",
    )


def _left_over(attempt: Attempt, record: FlushedEpoch) -> State:
    """Tell the state of a manifest that will be trimmed."""
    return "flushed" if attempt.generation == record.generation else "superseded"


def _view(
    query: Query,
    manifest: Manifest,
    state: State | None,
    rows: int,
    progress: Callable[[int, int], None],
) -> AttemptView:
    problems: list[str] = []
    columns: tuple[Column, ...] = ()
    sample: list[dict[str, str | None]] = []
    try:
        columns = plan_of(query.log, manifest).columns
        sample = _sample(query, manifest, rows, progress)
    except WalSinkError as error:
        problems.append(error.summary)
    return AttemptView(
        generation=manifest.generation,
        state=state,
        run_id=manifest.run_id,
        published=iso(manifest.published_us),
        rows=manifest.rows,
        bytes=manifest.bytes,
        offsets=tuple(manifest.offsets.split("\n")[_SOURCES:]),
        columns=columns,
        segments=tuple(map(_segment, manifest.segments)),
        sample=tuple(sample),
        problems=tuple(problems),
    )


def _segment(ref: SegmentRef) -> SegmentView:
    partition, task_attempt = paths.parse_segment_task(ref.path) or (None, None)
    return SegmentView(
        path=ref.path,
        partition=partition,
        task_attempt=task_attempt,
        rows=ref.rows,
        bytes=ref.bytes,
        inline=not ref.is_file,
    )


def _sample(
    query: Query, manifest: Manifest, rows: int, progress: Callable[[int, int], None]
) -> list[dict[str, str | None]]:
    """Read the first rows of an attempt.

    :raises MissingSegment, CorruptLog: a segment that holds them is gone, or damaged.
    """
    found: list[dict[str, str | None]] = []
    done = 0

    def read(size: int) -> None:
        nonlocal done
        done += size
        progress(done, manifest.bytes)

    for ref in manifest.segments:
        if len(found) >= rows:
            break
        if not ref.rows:
            continue
        try:
            for batch in read_segment(query.log.backend, ref, read=read):
                found += islice(map(_texts, _rows(batch)), rows - len(found))
                if len(found) >= rows:
                    break
        except FileNotFoundError as error:
            raise MissingSegment(
                f"{query.log.url}/{ref.path} is gone", lost_segment(manifest.epoch)
            ) from error
    return found


def _rows(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    return (batch.slice(index, 1) for index in range(batch.num_rows))


def _texts(row: pa.RecordBatch) -> dict[str, str | None]:
    return {name: value_text(row.column(name)[0]) for name in row.schema.names}
