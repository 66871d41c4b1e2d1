"""Reads the rows of a begun epoch as the ledger says, in their order: from its manifest to slices."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from state_backends import StateBackend
from wal_sink import remedies
from wal_sink.errors import CorruptLog
from wal_sink.model import paths
from wal_sink.model.ledger import BegunEpoch
from wal_sink.model.manifest import Attempt, Manifest
from wal_sink.model.plan import Plan
from wal_sink.protocol.split_window import Piece
from wal_sink.targets.base import Slice
from wal_sink.targets.refused import without
from wal_sink.wal.log import Log
from wal_sink.wal.segment import CheckedSegments, read_segment


class FileGoneError(Exception):
    """A file of a begun epoch is not there; the ledger tells whether it is still needed (rule 20)."""

    def __init__(self, epoch: int, path: str) -> None:
        super().__init__(epoch, path)
        self.epoch = epoch
        self.path = path


def pieces(
    log: Log,
    begun: BegunEpoch,
    manifest: Manifest | None = None,
    passed: Collection[int] = (),
) -> list[Piece]:
    """Return an epoch's segments, whole and in the order of the manifest; reads no segment.

    :param manifest: the one that was begun, if the caller has read it; None: read it.
    :param passed: write timestamps of rows that are in quarantine.
    :raises FileGoneError: the manifest is missing.
    :raises CorruptLog: it is not what was begun, or its plan is gone.
    """
    if not begun.manifest:
        return []  # Spark made the epoch without a sink (rule 12), or it is given up (rule 22)
    manifest = manifest or begun_manifest(log, begun)
    plan = plan_of(log, manifest)
    found = []
    first_us = begun.base_us
    for segment in manifest.segments:
        found.append(
            Piece(
                epoch=begun.epoch,
                plan=plan,
                segment=segment,
                start=0,
                stop=segment.rows,
                first_us=first_us,
                passed=tuple(
                    us for us in sorted(passed) if first_us <= us < first_us + segment.rows
                ),
            )
        )
        first_us += segment.rows
    return found


def read_piece(
    backend: StateBackend, piece: Piece, checked: CheckedSegments | None = None
) -> Iterator[Slice]:
    """Yield the rows of a piece, a slice for each batch, with their timestamps (rule 15).

    Memory: one batch of a segment.

    :param checked: segments that the caller has read; None: none.
    :raises FileGoneError: the segment is missing.
    :raises CorruptLog: it is not what its task wrote.
    """
    first_us = piece.first_us
    data = checked.take(piece.segment) if checked is not None else None
    try:
        for batch in read_segment(backend, piece.segment, piece.start, piece.stop, checked=data):
            yield from without(Slice(piece.epoch, batch, first_us), piece.passed)
            first_us += batch.num_rows
    except FileNotFoundError as error:
        raise FileGoneError(piece.epoch, piece.segment.path) from error


def begun_manifest(log: Log, begun: BegunEpoch) -> Manifest:
    """Read the manifest that was begun, and see that it is that one to the byte.

    :raises FileGoneError: it is missing.
    :raises CorruptLog: it is another one.
    """
    found = log.manifest(Attempt(begun.epoch, begun.generation))
    if found is None:
        raise FileGoneError(begun.epoch, begun.manifest)
    manifest, digest = found
    if digest != begun.digest:
        raise CorruptLog(
            f"{log.url}/{begun.manifest} has changed since the ledger began its epoch",
            f"Manifests are never edited. {remedies.lost_segment(begun.epoch, begun=True)}"
            f" {remedies.restored(None)}",
        )
    return manifest


def begun_manifests(log: Log, epochs: Iterable[BegunEpoch]) -> dict[int, Manifest]:
    """Read the manifests of begun epochs, by epoch; one that is passed over has none.

    :raises FileGoneError, CorruptLog: see `begun_manifest`.
    """
    return {begun.epoch: begun_manifest(log, begun) for begun in epochs if begun.manifest}


def plan_of(log: Log, manifest: Manifest) -> Plan:
    """Read the plan that an epoch was checked against.

    :raises CorruptLog: it is gone, or cannot be read.
    """
    plan = log.plan(manifest.plan)
    if plan is None:
        raise CorruptLog(
            f"Epoch {manifest.epoch} was checked against the plan {manifest.plan}, which is gone",
            f"Restore {log.where(paths.plan(manifest.plan))} from a copy of the log, or start the query"
            f" with the same schema and options again, which makes it anew. {remedies.VERIFY}",
        )
    return plan
