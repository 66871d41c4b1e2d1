"""Reads manifests along the chain of digests that begins with the state's `last` (rule `order`).

Each manifest names path and digest of the manifest before it. Even the only manifest of an epoch is compared
with this digest, since it may be an attempt of a superseded run.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection

from wal_sink.checkpoint.checkpoint import Offsets
from wal_sink.errors import CorruptLog, MissingManifest, restore_or_give_up
from wal_sink.model import paths
from wal_sink.model.manifest import Appended, Manifest, manifest_digest
from wal_sink.model.state import EpochManifest, Predecessor, State, Sums
from wal_sink.protocol.refusals import already_published
from wal_sink.wal.store import LogStore, create_object, read_object

_KEPT_BYTES = 16 * 1024 * 1024
"""Most bytes of manifests, with their inlined rows, that stay in memory after the chain was read."""


class ManifestChain:
    """Reads the chain of a log's manifests, for one flusher or command that reads epochs in ascending order.

    The first call in a backlog reads every manifest of the backlog once. Memory: 16 MiB, and 1 kB for each
    epoch of the backlog.
    """

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._known: dict[int, EpochManifest] = {}
        self._kept: dict[str, Manifest] = {}
        self._kept_bytes = 0

    def chain(
        self, state: State, after: int, skipped: Collection[int] = ()
    ) -> dict[int, EpochManifest]:
        """Return the manifests of the epochs after `after`, by epoch. The chain ends at a missing manifest.

        A damaged manifest also ends the chain, unless its epoch is `after` + 1.

        :param skipped: epochs that were given up for the target.
        :raises CorruptLog: the manifest of epoch `after` + 1 does not have the digest in its link, and the
            epoch is not skipped.
        """
        manifest, chain = state.last, {}
        while manifest.epoch > after and manifest.manifest:
            chain[manifest.epoch] = manifest
            link, epoch = manifest.predecessor, manifest.epoch - 1
            if epoch <= after or not link.manifest:
                break
            known = self._known.get(epoch)
            if known is None or known.digest != link.digest:
                try:
                    published = self._read(epoch, link.manifest, link.digest)
                except CorruptLog:
                    if epoch == after + 1 and epoch not in skipped:
                        raise
                    break
                if published is None:
                    break
                known = published.as_epoch_manifest(link.manifest, link.digest)
                self._known[epoch] = known
                self._keep(link.manifest, published)
            manifest = known
        return chain

    def read_link(self, epoch: int, link: Predecessor) -> EpochManifest:
        """Read the manifest of an epoch, which the next epoch's manifest names by `link`.

        :raises MissingManifest, CorruptLog: the manifest is gone, or has another digest.
        """
        published = self._read(epoch, link.manifest, link.digest)
        if published is None:
            raise self._missing(epoch, link.manifest)
        self._keep(link.manifest, published)
        return published.as_epoch_manifest(link.manifest, link.digest)

    def read(self, manifest: EpochManifest) -> Manifest:
        """Read the manifest of an epoch in the chain, with its inlined rows.

        :raises MissingManifest, CorruptLog: the manifest is gone, or has another digest.
        """
        published = self._kept.pop(manifest.manifest, None)
        if published is not None:
            self._kept_bytes -= _held_bytes(published)
        else:
            published = self._read(manifest.epoch, manifest.manifest, manifest.digest)
        if published is None:
            raise self._missing(manifest.epoch, manifest.manifest)
        return published

    def forget(self, up_to: int) -> None:
        """Free the memory of the epochs up to `up_to`."""
        for epoch in [epoch for epoch in self._known if epoch <= up_to]:
            kept = self._kept.pop(self._known.pop(epoch).manifest, None)
            self._kept_bytes -= _held_bytes(kept) if kept is not None else 0

    def _missing(self, epoch: int, path: str) -> MissingManifest:
        return MissingManifest(
            f"The manifest {self._store.url}/{path} of epoch {epoch} is gone.",
            restore_or_give_up(epoch),
        )

    def _keep(self, path: str, published: Manifest) -> None:
        if self._kept_bytes + _held_bytes(published) <= _KEPT_BYTES:
            self._kept[path] = published
            self._kept_bytes += _held_bytes(published)

    def _read(self, epoch: int, path: str, digest: str) -> Manifest | None:
        data = read_object(self._store, path)
        if data is None:
            return None
        where = f"{self._store.url}/{path}"
        if manifest_digest(data) != digest:
            raise CorruptLog(
                f"{where} has changed since epoch {epoch} was published. Its digest is not {digest}.",
                restore_or_give_up(epoch),
            )
        published = Manifest.from_file(data, where)
        if not _names_own_objects(published, epoch):
            raise CorruptLog(
                f"{where} names a plan or a segment of another epoch.", restore_or_give_up(epoch)
            )
        return published


def new_manifest(
    batch: Appended,
    offsets: Offsets,
    predecessor: Predecessor,
    *,
    plan: str,
    published_us: int,
    sendings: int = 1,
) -> Manifest:
    """Return a manifest that continues the timestamps and the sums of its predecessor.

    :param batch: the segments of all tasks, in one report.
    :param plan: key of the plans by which the rows were checked.
    :param published_us: time of this call, microseconds since 1970.
    :param sendings: how many times the rows may be sent with write timestamps of their own.
    """
    rows = sum(segment.rows for segment in batch.segments)
    size = sum(segment.bytes for segment in batch.segments + batch.refused)
    first_us = max(published_us, predecessor.last_us + 1)
    return Manifest(
        epoch=batch.execution.epoch,
        query_id=batch.execution.query_id,
        run_id=batch.execution.run_id,
        nonce=uuid.uuid4().hex,
        plan=plan,
        segments=batch.segments,
        refused=batch.refused,
        offsets=offsets.text,
        offsets_digest=offsets.digest,
        published_us=published_us,
        first_us=first_us,
        last_us=first_us + max(rows * sendings, 1) - 1,
        sums=Sums(rows=predecessor.sums.rows + rows, bytes=predecessor.sums.bytes + size),
        predecessor=predecessor,
    )


def create_manifest(store: LogStore, path: str, manifest: Manifest) -> EpochManifest:
    """Create a manifest durably; return the part of it that the state names.

    If the path is taken, the nonce of the present manifest shows whether this call has created it, by a
    request whose answer was lost.

    :raises AlreadyPublished: the run has created another manifest for the epoch.
    :raises CorruptLog: the present manifest cannot be read, or was deleted in between.
    """
    data = manifest.to_file()
    try:
        created = create_object(store, path, data)
    except OSError:
        if read_object(store, path) is None:
            raise
        created = False
    if not created:
        present, where = read_object(store, path), f"{store.url}/{path}"
        if present is None:
            raise CorruptLog(
                f"{where} was deleted while the run published it.",
                "Do not edit the log by hand. Start the query again: Spark computes the epoch again.",
            )
        if Manifest.from_file(present, where).nonce != manifest.nonce:
            raise already_published(manifest.epoch)
    return manifest.as_epoch_manifest(path, manifest_digest(data))


def _held_bytes(published: Manifest) -> int:
    held = (len(s.data) for s in published.segments if s.data is not None)
    return 2_000 + sum(held)


def _names_own_objects(manifest: Manifest, epoch: int) -> bool:
    """Return True if all objects that a manifest names belong to its own log and epoch.

    So a forged manifest can neither send rows of another log nor read a file outside of the log.
    """
    return (
        manifest.epoch == epoch
        and paths.is_plan_key(manifest.plan)
        and all(
            paths.is_segment_of(segment.path, epoch) and min(segment.rows, segment.bytes) >= 0
            for segment in manifest.all_segments
        )
    )
