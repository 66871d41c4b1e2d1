"""Makes the window to begin of the epochs that were chosen: reads their manifests, as many as it takes."""

from __future__ import annotations

from wal_sink.errors import WalSinkError
from wal_sink.flush.read_window import plan_of
from wal_sink.log_context import line_logger
from wal_sink.model import paths
from wal_sink.model.ledger import Window
from wal_sink.model.manifest import Manifest
from wal_sink.protocol.choose_attempt import doubts, plan_without_rows
from wal_sink.protocol.ledger_updates import plan_window
from wal_sink.protocol.steps import Begin, PassOver, View
from wal_sink.protocol.windows import fits
from wal_sink.wal.log import Log
from wal_sink.wal.segment import check_segment

logger = line_logger(__name__)


class ManifestGoneError(Exception):
    """A manifest has vanished since it was listed: another flusher was quicker, or it is lost."""

    def __init__(self, epoch: int) -> None:
        super().__init__(epoch)
        self.epoch = epoch


def to_begin(step: Begin | PassOver, view: View, log: Log, now_us: int, nonce: str) -> Window:
    """Return the window to begin; a choice that something speaks against is logged.

    :param now_us: clock of the flusher, microseconds since 1970.
    :raises ManifestGoneError: a manifest is not there.
    :raises CorruptLog: the first one cannot be used.
    """
    assert view.mark is not None
    if isinstance(step, PassOver):
        logger.warning("epoch %d is flushed without rows: %s", step.epoch, step.why)
        return plan_without_rows(step, view.mark, now_us, nonce)
    for doubt in doubts(step, view.recorded):
        logger.warning("%s: %s", log.url, doubt)
    return plan_window(window_manifests(step, log), view.mark, now_us, nonce)


def window_manifests(step: Begin, log: Log) -> list[tuple[Manifest, str, str]]:
    """Read the manifests that were chosen, with path and digest, as many as fit into one window.

    Behind the first one, an epoch is taken only when all of it can be read: else the mark could not move
    over the epochs before it until somebody has mended it. Its bytes are read twice for that, a small
    part of what sending them costs.

    :raises ManifestGoneError: one is not there.
    :raises CorruptLog: the first one cannot be used.
    """
    manifests: list[tuple[Manifest, str, str]] = []
    taken = 0
    for attempt in step.attempts:
        found = log.manifest(attempt)
        if found is None:
            raise ManifestGoneError(attempt.epoch)
        manifest, digest = found
        if manifests and not (fits(taken, manifest.bytes) and _is_whole(manifest, log)):
            break
        taken += manifest.bytes
        manifests.append((manifest, paths.manifest(attempt), digest))
    return manifests


def _is_whole(manifest: Manifest, log: Log) -> bool:
    """Whether plan and segments can be read; what is wrong is raised when the epoch is the first one."""
    try:
        plan_of(log, manifest)
        for segment in manifest.segments:
            check_segment(log.backend, segment)
    except (WalSinkError, FileNotFoundError):
        return False
    return True
