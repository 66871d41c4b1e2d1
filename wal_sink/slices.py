"""From a begun epoch to the slices that are written: the rows as the ledger says, in their order."""

from __future__ import annotations

from collections.abc import Iterator

from wal_sink import layout, remedies
from wal_sink.errors import CorruptLog
from wal_sink.log import Log
from wal_sink.manifest import Attempt, Manifest
from wal_sink.segment import read_segment
from wal_sink.targets.base import BegunEpoch, Plan, Slice


class GoneError(Exception):
    """A file of a begun epoch is not there; the ledger tells whether it is still needed (rule 20)."""


def slices(log: Log, begun: BegunEpoch) -> Iterator[tuple[Plan, Slice]]:
    """Yield an epoch's rows, each with its place in the epoch's timestamps (rule 15).

    Memory: one batch of a segment.

    :raises GoneError: the manifest or a segment is missing.
    :raises CorruptLog: what is there is not what was begun.
    """
    if not begun.manifest:
        return  # Spark made the epoch without a sink (rule 12), or it is given up (rule 22)
    manifest = begun_manifest(log, begun)
    plan = plan_of(log, manifest)
    first_us = begun.base_us
    for segment in manifest.segments:
        try:
            for batch in read_segment(log.backend, segment):
                yield plan, Slice(begun.epoch, batch, first_us)
                first_us += batch.num_rows
        except FileNotFoundError as error:
            raise GoneError(segment.path) from error
    if first_us - begun.base_us != begun.rows:
        raise CorruptLog(
            f"The segments of epoch {begun.epoch} hold {first_us - begun.base_us} rows, its manifest"
            f" says {begun.rows}",
            remedies.lost_segment(begun.epoch, begun=True),
        )


def begun_manifest(log: Log, begun: BegunEpoch) -> Manifest:
    """Read the manifest that was begun, and see that it is that one to the byte.

    :raises GoneError: it is missing.
    :raises CorruptLog: it is another one.
    """
    found = log.manifest(Attempt(begun.epoch, begun.generation))
    if found is None:
        raise GoneError(begun.manifest)
    manifest, digest = found
    if digest != begun.digest:
        raise CorruptLog(
            f"{log.url}/{begun.manifest} has changed since the ledger began its epoch",
            "Manifests are never edited. " + remedies.lost_segment(begun.epoch, begun=True),
        )
    return manifest


def plan_of(log: Log, manifest: Manifest) -> Plan:
    """Read the plan that an epoch was checked against.

    :raises CorruptLog: it is gone, or cannot be read.
    """
    plan = log.plan(manifest.plan)
    if plan is None:
        raise CorruptLog(
            f"Epoch {manifest.epoch} was checked against the plan {manifest.plan}, which is gone",
            f"Restore {log.url}/{layout.plan(manifest.plan)} from a copy of the log, or start the query"
            f" with the same schema and options again, which makes it anew. {remedies.VERIFY}",
        )
    return plan
