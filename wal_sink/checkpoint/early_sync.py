"""Syncs what says that epochs are planned and checkpointed, as early as can be (rule 8).

A sync takes about as long as a request to the target. Nothing is begun before both are done, but neither
needs the other. And what Spark has written of an epoch before it checkpoints that is synced by then.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from concurrent.futures import Future

from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.checkpoint.local_files import Synced, local_folder

_FOLDERS = ("offsets", "commits")


class EarlySync:
    """Syncs the files of one checkpoint, for one flusher; does nothing where that is in no local folder."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._files = Synced(checkpoint.url)
        self._is_local = local_folder(checkpoint.url) is not None
        self._epoch = self._ahead = -1
        self._synced: Future[None] = Future()

    def ahead(self) -> None:
        """Begin to sync what there is of the next epoch, once: Spark is about to checkpoint it."""
        epoch = self._epoch + 1
        if epoch != self._ahead and self._files.has(f"offsets/{epoch}"):
            self._ahead = epoch
            self._in_thread((epoch - 1, epoch), Future())

    def start(self, epoch: int) -> None:
        """Begin to sync an epoch that this pass has found checkpointed; forget that of a pass before.

        Files that have changed since are synced again: the checkpoint may be another one by now.
        """
        self._epoch, self._synced = epoch, Future()
        if self._is_local:
            self._in_thread((epoch,), self._synced)
        else:
            self._synced.set_result(None)

    def make_durable(self, epochs: Collection[int]) -> None:
        """Sync what is left of some epochs; return when all of them are durable.

        :raises OSError: a file could not be synced, so the epochs must not be acted on.
        """
        self._sync(epoch for epoch in epochs if epoch != self._epoch)
        if self._epoch in epochs:
            self._synced.result()

    def _sync(self, epochs: Iterable[int]) -> None:
        self._files.make_durable(f"{folder}/{epoch}" for epoch in epochs for folder in _FOLDERS)

    def _in_thread(self, epochs: Iterable[int], synced: Future[None]) -> None:
        def sync() -> None:
            try:
                self._sync(epochs)
            except BaseException as error:  # noqa: BLE001 - it is raised where the flusher waits
                synced.set_exception(error)
            else:
                synced.set_result(None)

        threading.Thread(target=sync, name="wal_sink-sync", daemon=True).start()
