"""Reads manifests along the chain of digests that begins with the state's `last` (rule `order`).

Each manifest names path and digest of the manifest before it. A manifest is compared with this digest even if
it is the only one of its epoch: it may be an attempt of a superseded run.
"""

from __future__ import annotations

from collections.abc import Collection

from wal_sink.errors import CorruptLog, MissingManifest, restore_or_give_up
from wal_sink.model import paths
from wal_sink.model.manifest import Manifest, Published, manifest_digest
from wal_sink.model.state import EpochManifest, Predecessor, State
from wal_sink.wal.store import LogStore

_KEPT_BYTES = 16 * 1024 * 1024
"""Most bytes of manifests that are kept, with their inlined rows, between reading the chain and the flush."""


class ManifestChain:
    """The chain of a log's manifests, for one reader that goes from old to new epochs.

    Memory: 1 kB for each epoch between the reader and the newest epoch, and 16 MiB. The first call in a long
    backlog reads every manifest of the backlog once.
    """

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._known: dict[int, EpochManifest] = {}
        self._kept: dict[str, Published] = {}
        self._kept_bytes = 0

    def chain(
        self, state: State, after: int, skipped: Collection[int] = ()
    ) -> dict[int, EpochManifest]:
        """Return the manifests of the epochs after `after`, by epoch. The chain ends at a missing manifest.

        The chain ends at a damaged manifest, too, unless this is the manifest of the next epoch.

        :param skipped: epochs that were given up for the target.
        :raises CorruptLog: the manifest of the next epoch is not the one that its successor names.
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
                known = published.manifest.as_epoch_manifest(link.manifest, link.digest)
                self._known[epoch] = known
                self._keep(link.manifest, published)
            manifest = known
        return chain

    def read_link(self, epoch: int, link: Predecessor) -> EpochManifest:
        """Read the manifest of an epoch that a link names.

        :raises MissingManifest, CorruptLog: the manifest is gone, or has another digest.
        """
        published = self._read(epoch, link.manifest, link.digest)
        if published is None:
            raise self._missing(epoch, link.manifest)
        self._keep(link.manifest, published)
        return published.manifest.as_epoch_manifest(link.manifest, link.digest)

    def read(self, manifest: EpochManifest) -> Published:
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
        """Free the memory of the epochs up to this one."""
        for epoch in [epoch for epoch in self._known if epoch <= up_to]:
            kept = self._kept.pop(self._known.pop(epoch).manifest, None)
            self._kept_bytes -= _held_bytes(kept) if kept is not None else 0

    def _missing(self, epoch: int, path: str) -> MissingManifest:
        return MissingManifest(
            f"The manifest {self._store.url_of(path)} of epoch {epoch} is gone.",
            restore_or_give_up(epoch),
        )

    def _keep(self, path: str, published: Published) -> None:
        if self._kept_bytes + _held_bytes(published) <= _KEPT_BYTES:
            self._kept[path] = published
            self._kept_bytes += _held_bytes(published)

    def _read(self, epoch: int, path: str, digest: str) -> Published | None:
        data = self._store.read(path)
        if data is None:
            return None
        where = self._store.url_of(path)
        if manifest_digest(data) != digest:
            raise CorruptLog(
                f"{where} has changed since epoch {epoch} was published. Its digest is not {digest}.",
                restore_or_give_up(epoch),
            )
        published = Manifest.from_file(data, where)
        if not _names_its_own(published.manifest, epoch):
            raise CorruptLog(
                f"{where} names a plan or a segment of another epoch.", restore_or_give_up(epoch)
            )
        return published


def create_manifest(store: LogStore, path: str, manifest: Manifest) -> Published:
    """Create a manifest durably. Return the manifest that exists under this name, with its digest.

    :raises CorruptLog: the existing manifest cannot be read, or was deleted in between.
    """
    encoded = manifest.to_file()
    try:
        if store.create(path, encoded):
            return Published(manifest, manifest_digest(encoded))
    except OSError:
        if store.read(path) is None:
            raise
    data = store.read(path)
    if data is None:
        raise CorruptLog(
            f"{store.url_of(path)} was deleted while the run published it.",
            "Do not edit the log by hand. Start the query again: Spark computes the epoch again.",
        )
    return Manifest.from_file(data, store.url_of(path))


def _held_bytes(published: Published) -> int:
    held = (len(s.data) for s in published.manifest.segments if s.data is not None)
    return 2_000 + sum(held)


def _names_its_own(manifest: Manifest, epoch: int) -> bool:
    """Return True if all objects that a manifest names belong to its own log and epoch.

    A forged manifest must not send rows of another log or read a file elsewhere.
    """
    return (
        manifest.epoch == epoch
        and paths.is_plan_key(manifest.plan)
        and all(
            paths.is_segment_of(segment.path, epoch) and min(segment.rows, segment.bytes) >= 0
            for segment in manifest.all_segments
        )
    )
