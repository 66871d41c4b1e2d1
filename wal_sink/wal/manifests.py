"""Reads manifests by the chain of digests that leads down from the state's `last` (rule `order`).

A manifest is found by the name that its successor gives, and compared with the digest that its
successor gives, also if it is the only one of its epoch: a run that was superseded may have left
another one.
"""

from __future__ import annotations

from collections.abc import Collection

from wal_sink.errors import CorruptLog, MissingManifest, restore_or_give_up
from wal_sink.model import paths
from wal_sink.model.manifest import Manifest, Published, manifest_digest
from wal_sink.model.state import EpochManifest, Predecessor, State
from wal_sink.wal.store import LogStore

_KEPT_BYTES = 16 * 1024 * 1024
"""Most bytes of manifests with their rows that are kept from the walk along the chain until they
are flushed."""


class ManifestChain:
    """The chain of a log's manifests, for one reader that goes upwards.

    Memory: 1 kB for each epoch between the reader and the newest one, and 16 MiB. The first call in a long
    backlog reads every manifest of the backlog, once.
    """

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._known: dict[int, EpochManifest] = {}
        self._kept: dict[str, Published] = {}
        self._kept_bytes = 0

    def chain(
        self, state: State, after: int, skipped: Collection[int] = ()
    ) -> dict[int, EpochManifest]:
        """Return the manifests of the epochs after one, by epoch; it ends where a manifest is missing.

        A damaged manifest ends it, too, unless it is that of the next epoch.

        :param skipped: epochs that the target does without.
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
                known = published.manifest.as_epoch(link.manifest, link.digest)
                self._known[epoch] = known
                self._keep(link.manifest, published)
            manifest = known
        return chain

    def named(self, epoch: int, link: Predecessor) -> EpochManifest:
        """Read the manifest of an epoch as the one after it names it.

        :raises MissingManifest, CorruptLog: it is gone, or another one.
        """
        published = self._read(epoch, link.manifest, link.digest)
        if published is None:
            raise self._missing(epoch, link.manifest)
        self._keep(link.manifest, published)
        return published.manifest.as_epoch(link.manifest, link.digest)

    def read(self, manifest: EpochManifest) -> Published:
        """Read the manifest of an epoch of the chain, with the rows that it holds.

        :raises MissingManifest, CorruptLog: it is gone, or another one.
        """
        published = self._kept.pop(manifest.manifest, None)
        if published is not None:
            self._kept_bytes -= _held(published)
        else:
            published = self._read(manifest.epoch, manifest.manifest, manifest.digest)
        if published is None:
            raise self._missing(manifest.epoch, manifest.manifest)
        return published

    def forget(self, up_to: int) -> None:
        """Forget the epochs that the reader has passed."""
        for epoch in [epoch for epoch in self._known if epoch <= up_to]:
            kept = self._kept.pop(self._known.pop(epoch).manifest, None)
            self._kept_bytes -= _held(kept) if kept is not None else 0

    def _missing(self, epoch: int, path: str) -> MissingManifest:
        return MissingManifest(
            f"The manifest {self._store.url_of(path)} of epoch {epoch} is gone.",
            restore_or_give_up(epoch),
        )

    def _keep(self, path: str, published: Published) -> None:
        if self._kept_bytes + _held(published) <= _KEPT_BYTES:
            self._kept[path] = published
            self._kept_bytes += _held(published)

    def _read(self, epoch: int, path: str, digest: str) -> Published | None:
        data = self._store.read(path)
        if data is None:
            return None
        where = self._store.url_of(path)
        if manifest_digest(data) != digest:
            raise CorruptLog(
                f"{where} has changed since epoch {epoch} was published: its digest is not {digest}.",
                restore_or_give_up(epoch),
            )
        published = Manifest.from_file(data, where)
        if not _names_its_own(published.manifest, epoch):
            raise CorruptLog(
                f"{where} names a plan or a segment of another epoch.", restore_or_give_up(epoch)
            )
        return published


def create_manifest(store: LogStore, path: str, manifest: Manifest) -> Published:
    """Create a manifest durably; return the one that is there under its name, with its digest.

    :raises CorruptLog: the one that is there cannot be read, or vanished.
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
        raise CorruptLog(f"{store.url_of(path)} vanished.", "Do not edit the log by hand.")
    return Manifest.from_file(data, store.url_of(path))


def _held(published: Published) -> int:
    held = (len(s.data) for s in published.manifest.segments if s.data is not None)
    return 2_000 + sum(held)


def _names_its_own(manifest: Manifest, epoch: int) -> bool:
    """Return True if all objects that a manifest names are its own log's and epoch's: their rows are sent."""
    return (
        manifest.epoch == epoch
        and paths.is_plan_key(manifest.plan)
        and all(
            paths.is_segment_of(segment.path, epoch) and min(segment.rows, segment.bytes) >= 0
            for segment in manifest.all_segments
        )
    )
