"""`inspect`: lists what the log holds, epoch by epoch; or shows one epoch, with some of its rows.

It changes nothing; the query may run. Values of rows are shown as text that can be printed anywhere.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Literal, NamedTuple

import msgspec
import pyarrow as pa

from wal_sink.admin.ledger import open_ledger
from wal_sink.admin.query import Progress, Query, no_progress, summing_progress
from wal_sink.clock import iso
from wal_sink.errors import MissingSegment, OptionError, WalSinkError, restore_or_skip
from wal_sink.flush.rows import plan_of
from wal_sink.model import paths
from wal_sink.model.ledger import BegunEpoch, Window
from wal_sink.model.manifest import Attempt, Manifest, SegmentRef, attempts_at
from wal_sink.model.plan import Column
from wal_sink.model.records import Decision, FlushedEpoch
from wal_sink.progress.backlog import read_manifests
from wal_sink.progress.decisions import in_force
from wal_sink.protocol.attempts import missing_manifest
from wal_sink.protocol.next_step import Begin, Choose
from wal_sink.targets.base import Target
from wal_sink.text import printable
from wal_sink.wal.segment import read_segment

State = Literal[
    "flushed",
    "begun",
    "waiting",
    "not checkpointed",
    "superseded",
    "given up",
    "damaged",
    "no manifest",
]
"""`superseded`: Spark has kept another attempt at the epoch. `no manifest`: `verify` says what to do."""


class EpochLine(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at an epoch, or what is known of the epoch without any."""

    epoch: int
    generation: int | None = None
    state: State
    segments: int | None = None
    """None: not known any more, since the manifest is trimmed, or not known yet."""
    rows: int | None = None
    bytes: int | None = None
    published: str | None = None
    """ISO 8601 in UTC."""
    problem: str | None = None


class Inspected(msgspec.Struct, frozen=True, kw_only=True):
    """What the log holds; epoch ids are -1 for none."""

    query_id: str
    checkpoint: str
    log: str
    checkpointed: int
    flushed: int
    begun_known: bool
    """Whether the ledger was read. If not, begun epochs are listed as waiting."""
    epochs: tuple[EpochLine, ...]
    """Ascending; the newest flushed ones, and the oldest others."""
    left_out_flushed: int
    left_out_waiting: int


class StateInputs(NamedTuple):
    """From what the state of an attempt follows."""

    checkpointed: int
    attempts: tuple[Attempt, ...]
    """All manifests there are."""
    given_up: Collection[int]
    begun: Collection[Attempt]


def inspect(query: Query, begun: Window | None, most: int, *, asked: bool = False) -> Inspected:
    """List the epochs that the log holds.

    :param begun: the window that the ledger says is begun; None for none, or where the ledger was not asked.
    :param most: lists at most so many flushed epochs, and at most so many others.
    :param asked: whether the ledger was asked.
    """
    checkpointed = query.checkpoint.last_commit()
    recorded = query.log.flushed_epochs()
    flushed = max(recorded, default=-1)
    inputs = read_state_inputs(query, checkpointed, begun)
    above = {attempt.epoch for attempt in inputs.attempts if attempt.epoch > flushed}
    if (identity := query.log.identity()) is not None:
        above |= set(range(max(flushed + 1, identity.first_epoch), checkpointed + 1))
    newest = recorded[max(0, len(recorded) - most) :]
    done = query.log.flushed_since(newest[0] - 1) if newest else []
    lines = [_recorded(record, inputs.given_up) for record in done]
    for epoch in sorted(above)[:most]:
        lines += _unflushed(query, epoch, inputs)
    return Inspected(
        query_id=query.query_id,
        checkpoint=query.checkpoint.url,
        log=query.log.url,
        checkpointed=checkpointed,
        flushed=flushed,
        begun_known=asked,
        epochs=tuple(lines),
        left_out_flushed=max(0, len(recorded) - most),
        left_out_waiting=max(0, len(above) - most),
    )


def begun_window(query: Query, target: Target) -> Window | None:
    """Ask the ledger what is begun.

    :raises TargetUnavailable, SchemaMismatch: it cannot be asked.
    :raises WrongOwner, OptionError: see `Query.identity`.
    """
    with open_ledger(target, query.owner(query.identity())) as ledger:
        row = ledger.read()
    return row.begun if row else None


def read_state_inputs(query: Query, checkpointed: int, begun: Window | None) -> StateInputs:
    """Read them from the log."""
    window = begun.epochs if begun else ()
    return StateInputs(
        checkpointed,
        query.log.attempts(),
        frozenset(query.log.decided()),
        frozenset(Attempt(epoch.epoch, epoch.generation) for epoch in window if epoch.manifest),
    )


def states(query: Query, epoch: int, inputs: StateInputs) -> dict[Attempt, State]:
    """Return the states of the attempts at an epoch that is not flushed.

    :raises WalSinkError: as a flusher raises it, such as `Diverged`.
    """
    attempts = attempts_at(inputs.attempts, epoch)
    found: dict[Attempt, State] = dict.fromkeys(attempts, "given up")
    later = _not_given_up(query, epoch, inputs)
    if epoch > inputs.checkpointed:
        return found | dict.fromkeys(later, "not checkpointed")
    taken = [attempt for attempt in later if attempt in inputs.begun]
    state: State = "begun" if taken else "waiting"
    chosen = taken or (_chosen(query, epoch, inputs) if later else ())
    return found | {attempt: state if attempt in chosen else "superseded" for attempt in later}


def _not_given_up(query: Query, epoch: int, inputs: StateInputs) -> Sequence[Attempt]:
    """Return the attempts at an epoch that no operator has given up."""
    attempts = attempts_at(inputs.attempts, epoch)
    if epoch not in inputs.given_up:
        return attempts
    decision, step = query.chooser().since_decided(Choose(epoch, tuple(attempts)))
    return () if decision else step.attempts


def _chosen(query: Query, epoch: int, inputs: StateInputs) -> Sequence[Attempt]:
    """Choose like a flusher that has received no event of Spark (rule 11)."""
    step = query.chooser().epoch(Choose(epoch, inputs.attempts))
    return step.attempts if isinstance(step, Begin) else ()


def _recorded(record: FlushedEpoch, given_up: Collection[int]) -> EpochLine:
    return EpochLine(
        epoch=record.epoch,
        generation=record.generation or None,
        state="given up" if record.epoch in given_up and not record.manifest else "flushed",
        rows=record.rows,
        bytes=record.bytes,
        published=iso(record.published_us),
    )


def _unflushed(query: Query, epoch: int, inputs: StateInputs) -> list[EpochLine]:
    attempts = attempts_at(inputs.attempts, epoch)
    if not attempts and (record := query.log.flushed(epoch)) is not None:
        return [_recorded(record, inputs.given_up)]  # flushed and trimmed since
    if not attempts:
        decision = query.log.decision(epoch)
        given_up = decision is not None and in_force(query.log, decision, (), query.checkpoint)
        return [EpochLine(epoch=epoch, state="given up" if given_up else "no manifest")]
    found = read_manifests(query.log, attempts)
    problem = None
    known: dict[Attempt, State] = {}
    try:
        known = states(query, epoch, inputs)
    except WalSinkError as error:
        problem = error.summary
    lines = []
    for attempt in attempts:
        if (damage := found.damaged.get(attempt)) is not None:
            lines.append(
                EpochLine(
                    epoch=epoch,
                    generation=attempt.generation,
                    state="damaged",
                    problem=damage.summary,
                )
            )
        elif attempt in found.manifests:
            state = known.get(attempt, "waiting")
            lines.append(_published(found.manifests[attempt], state, problem))
    return lines


def _published(manifest: Manifest, state: State, problem: str | None) -> EpochLine:
    return EpochLine(
        epoch=manifest.epoch,
        generation=manifest.generation,
        state=state,
        segments=len(manifest.segments),
        rows=manifest.rows,
        bytes=manifest.bytes,
        published=iso(manifest.published_us),
        problem=problem,
    )


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
        found = value.as_py()
    except (ValueError, OverflowError):  # a date or time that Python has not
        return _of_arrow(value)
    if value.type == _UUID:
        return str(uuid.UUID(bytes=found))
    if isinstance(found, bytes):
        text = "0x" + found[:_MOST_CHARACTERS].hex()
        return _cut(text)
    return printable(_cut(str(found)))


def _of_arrow(value: pa.Scalar) -> str:
    try:
        return str(value.cast(pa.string()).as_py())
    except pa.ArrowException:  # it is inside of a list or a struct
        return f"(a {value.type} that cannot be shown)"


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1] + "…"


_SOURCES = 2
"""The first line of Spark's offsets file about a source."""


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
    """None where it is not known, see `problems`."""
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
    progress: Progress = no_progress,
) -> InspectedEpoch:
    """Look at one epoch.

    :param begun: what the ledger says is begun.
    :param rows: how many rows to show of each attempt. They are read only from whole segments, which
        are digested first.
    :param progress: called with how many bytes of how many are read.
    :raises MissingManifest: it is checkpointed, not flushed, and there is nothing of it.
    :raises OptionError: it was never published, or was flushed long ago.
    """
    checkpointed = query.checkpoint.last_commit()
    inputs = read_state_inputs(query, checkpointed, begun)
    record, decision = query.log.flushed(epoch), query.log.decision(epoch)
    problems, views = [], []
    known: dict[Attempt, State] = {}
    if record is None:
        try:
            known = states(query, epoch, inputs)
        except WalSinkError as error:
            problems.append(error.summary)
    attempts = set(attempts_at(inputs.attempts, epoch))
    if record is not None:
        attempts.add(Attempt(epoch, record.generation))  # it may be retained
    for attempt in sorted(attempts):
        try:
            found = query.log.manifest(attempt)
        except WalSinkError as error:
            problems.append(error.summary)
            continue
        if found is not None:
            state = _flushed_state(attempt, record) if record else known.get(attempt)
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
    """Raise the reason why there is nothing to show.

    :raises MissingManifest, OptionError: always.
    """
    flushed = query.log.flushed_epochs()
    newest = max(flushed, default=-1)
    identity = query.log.identity()
    if identity is not None and identity.mark(newest) < epoch <= checkpointed:
        raise missing_manifest(epoch)
    raise OptionError(
        f"Nothing is known of epoch {epoch} in {query.log.url}",
        f"Records are kept of the flushed epochs {flushed[0]} to {newest}."
        if flushed
        else "Without EPOCH, inspect lists what is there.",
    )


def _flushed_state(attempt: Attempt, record: FlushedEpoch) -> State:
    """Return the state of a manifest whose epoch is flushed."""
    return "flushed" if attempt.generation == record.generation else "superseded"


def _view(
    query: Query,
    manifest: Manifest,
    state: State | None,
    rows: int,
    progress: Progress,
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
    name = paths.SEGMENT.parse(ref.path)
    return SegmentView(
        path=ref.path,
        partition=name and name.partition,
        task_attempt=name and name.task_attempt,
        rows=ref.rows,
        bytes=ref.bytes,
        inline=not ref.is_file,
    )


def _sample(
    query: Query, manifest: Manifest, rows: int, progress: Progress
) -> list[dict[str, str | None]]:
    """Read the first rows of an attempt.

    :raises MissingSegment, CorruptLog: a segment that holds them is gone, or damaged.
    """
    found: list[dict[str, str | None]] = []
    read = summing_progress(progress, manifest.bytes)
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
                f"{query.log.url}/{ref.path} is gone", restore_or_skip(manifest.epoch)
            ) from error
    return found


def _rows(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    return (batch.slice(index, 1) for index in range(batch.num_rows))


def _texts(row: pa.RecordBatch) -> dict[str, str | None]:
    return {name: value_text(row.column(name)[0]) for name in row.schema.names}
