"""How many bytes wait in a log, without reading the log for each epoch.

A manifest never changes, and one run at a time publishes. So the process in which a run publishes knows what
it has published, and reads the flushed mark only, which `publish` has at hand. The manifests are listed
and read once, when a run comes to a process for the first time: Spark keeps its Python workers, but may
end one that is idle for a minute.
"""

from __future__ import annotations

import threading

import msgspec

from wal_sink.model.manifest import Attempt
from wal_sink.progress.scan import read_manifests
from wal_sink.protocol.budget import Backlog
from wal_sink.wal.log import Log

_LOGS_KEPT = 64


class _Known(msgspec.Struct):
    generation: int
    through: int
    """Everything published below this epoch, or at it, is in `sizes`, if it was not flushed then."""
    sizes: dict[Attempt, int]


class Unflushed:
    """What a process knows of the logs to which it publishes. Used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logs: dict[str, _Known] = {}

    def below(
        self, log: Log, epoch: int, *, generation: int, flushed: int, checkpointed: int
    ) -> Backlog:
        """Count what is published before an epoch, checkpointed, and not flushed.

        :param generation: of the run that is about to publish the epoch, the highest there is.
        :param flushed: the last epoch that is flushed, -1 for none.
        """
        with self._lock:
            known = self._logs.get(log.url)
            if known is None or known.generation != generation or known.through < epoch - 1:
                known = _Known(generation, epoch - 1, _sizes(log, flushed))
                self._logs[log.url] = known
                while len(self._logs) > _LOGS_KEPT:
                    del self._logs[next(iter(self._logs))]
            for attempt in [attempt for attempt in known.sizes if attempt.epoch <= flushed]:
                del known.sizes[attempt]
            last = min(epoch - 1, checkpointed)
            counted = {a: size for a, size in known.sizes.items() if a.epoch <= last}
        return Backlog(len({attempt.epoch for attempt in counted}), sum(counted.values()))

    def published(self, log: Log, attempt: Attempt, size: int) -> None:
        """Note an epoch that this process has published.

        :param size: bytes of its segments.
        """
        with self._lock:
            known = self._logs.get(log.url)
            if known is not None and known.generation == attempt.generation:
                known.sizes[attempt] = size
                known.through = attempt.epoch


PUBLISHED = Unflushed()


def _sizes(log: Log, flushed: int) -> dict[Attempt, int]:
    """Read the manifests of what is not flushed; a damaged one stops the flush, which will say so."""
    attempts = [attempt for attempt in log.attempts() if attempt.epoch > flushed]
    found = read_manifests(log, attempts).manifests
    return {attempt: manifest.bytes for attempt, manifest in found.items()}
