"""Second names (`aside/`) keep what `rewind` flushes again from a flusher that stands still.

A flusher that stood still while it trimmed has the names of what it is about to delete. When an operator
rewinds the log meanwhile, these names are needed again. So `rewind` gives each object a second name in
`aside/<us>/`, which no flusher deletes before the epoch is flushed again; and a flusher that misses an object
brings it back from there: docs/protocol/operators.md#how-far-rewind-can-go. There, too, is the proof of the
attempt that is flushed again: a trim would delete one in `proofs/`. `us` is the highest write timestamp that
was used before the rewind. An epoch that is flushed after it has a higher one (rule 14) in its record.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable

from wal_sink.model import paths
from wal_sink.model.manifest import Attempt, Manifest
from wal_sink.model.records import LEFT_FIRST, LEFT_LAST, CommitProof
from wal_sink.wal.log import Log


def set_aside(log: Log, us: int, objects: Iterable[str], *, lost: bool = False) -> None:
    """Give objects a second name; what an earlier call did stays.

    :param us: the highest write timestamp that was used so far, microseconds since 1970.
    :param lost: they are manifests that were not flushed: they are kept, and never brought back.
    :raises FileNotFoundError: one is gone.
    """
    for path in objects:
        with contextlib.suppress(FileExistsError):
            log.backend.copy(path, log.stored_path(paths.aside(us, path, lost=lost)))


def prove_aside(log: Log, us: int, manifest: Manifest, highest: int) -> None:
    """Note which attempt at an epoch is flushed again; a note of an earlier call stays.

    A fenced run that stands still may publish the epoch after this, under a higher generation.

    :param us: the highest write timestamp that was used so far, microseconds since 1970.
    :param highest: the highest generation claimed so far. A later run has computed the epoch again.
    """
    proof = CommitProof(
        epoch=manifest.epoch,
        generation=manifest.generation,
        run_id=manifest.run_id,
        highest=highest,
    )
    path = paths.aside(us, paths.PROOF.path(manifest.attempt))
    with contextlib.suppress(FileExistsError):
        log.backend.create(log.stored_path(path), proof.to_json())


def bring_back(log: Log, epochs: Collection[int]) -> list[str]:
    """Give the missing objects of some epochs their first name again; return which were missing.

    Segments come before manifests: a manifest that is there has all its segments.
    """
    listed = _parsed(log.names(paths.ASIDE, fresh=True))
    found = [aside for aside in listed if aside[1] in epochs]
    # Newest first: of one name the last copy counts. "segments/" comes before "manifests/" reversed.
    found.sort(key=lambda aside: (aside[2], aside[0]), reverse=True)
    back = []
    for us, _, path in found:
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            log.backend.copy(log.stored_path(paths.aside(us, path)), path)
            back.append(path)
    return back


def attempts_aside(log: Log) -> dict[Attempt, str]:
    """List the attempts that can be brought back, afresh, each with the second name of its manifest."""
    named = {
        path: paths.aside(us, path) for us, _, path in _parsed(log.names(paths.ASIDE, fresh=True))
    }
    found = ((paths.MANIFEST.parse(path), second) for path, second in named.items())
    return {attempt: second for attempt, second in found if attempt is not None}


def offsets_aside(log: Log, second: str) -> str | None:
    """Return the digest of the source offsets of an attempt, by the second name of its manifest.

    :return: None if that is gone: its epoch was flushed again.
    :raises CorruptLog: it is no manifest.
    """
    data = log.read_bytes(second)
    if data is None:
        return None
    return Manifest.from_file(data, log.url_of(second)).manifest.offsets_digest


def names_aside(log: Log) -> frozenset[str]:
    """List the objects that can be brought back, by their first names; writes nothing."""
    return frozenset(path for _, _, path in _parsed(log.names(paths.ASIDE)))


def needless_aside(log: Log, upto: int) -> list[str]:
    """List what is aside of epochs that were flushed again, or whose rewind was given up long ago.

    :param upto: the epoch up to which all are flushed, as the ledger row says.
    """
    listed = log.names(paths.ASIDE)
    if not listed:
        return []
    records = log.flushed_epochs()
    oldest = log.flushed(records[0]) if records else None
    left = [row.after for row in log.interventions("rewind") if LEFT_FIRST in row.after]
    behind = [(int(row[LEFT_FIRST]), int(row[LEFT_LAST])) for row in left]
    last_us: dict[int, int] = {}
    found = []
    for name in listed:
        aside = paths.parse_aside(name)
        if aside is None or aside.epoch > upto:
            continue
        us, epoch = aside.us, aside.epoch
        if epoch not in last_us:
            record = log.flushed(epoch)
            if record is None and oldest is not None and epoch < oldest.epoch:
                record = oldest  # its own is forgotten; timestamps grow from epoch to epoch
            last_us[epoch] = record.last_us if record else 0
        # A timestamp that an operator has left behind proves nothing: it lies in the future.
        if last_us[epoch] > us and not any(a <= last_us[epoch] <= b for a, b in behind):
            found.append(name)
    return found


def _parsed(names: Iterable[str]) -> list[tuple[int, int, str]]:
    """Return time, epoch and first name of what can be brought back.

    A rewind before the epoch was flushed has kept every attempt at it; a later one knows which were lost.
    """
    found = [aside for aside in map(paths.parse_aside, names) if aside is not None]
    lost = {aside.path for aside in found if aside.lost}
    return [
        (aside.us, aside.epoch, aside.path)
        for aside in found
        if aside.path not in lost and paths.PROOF.parse(aside.path) is None
    ]
