"""Syncs the newest checkpointed epoch while the flusher reads what else it needs (rule 8)."""

from __future__ import annotations

import threading
from collections.abc import Collection
from concurrent.futures import Future

from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.checkpoint.local_files import local_folder


class EarlySync:
    """Syncs the files of one checkpoint, for one flusher.

    A sync takes about as long as a request to the target. Nothing is begun before both are done, but neither
    needs the other.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._is_local = local_folder(checkpoint.url) is not None
        self._epoch = -1
        self._synced: Future[None] = Future()

    def start(self, epoch: int) -> None:
        """Begin to sync an epoch that this pass has found checkpointed; forget that of a pass before.

        What an earlier pass has synced tells nothing of this one: the checkpoint may be another one by now.
        """
        self._epoch, self._synced = epoch, Future()
        if self._is_local:
            threading.Thread(
                target=_sync,
                args=(self._checkpoint, epoch, self._synced),
                name="wal_sink-sync",
                daemon=True,
            ).start()
        else:
            self._synced.set_result(None)

    def make_durable(self, epochs: Collection[int]) -> None:
        """Sync what is left of some epochs; return when all of them are durable.

        :raises OSError: a file could not be synced, so the epochs must not be acted on.
        """
        self._checkpoint.make_durable(*(epoch for epoch in epochs if epoch != self._epoch))
        if self._epoch in epochs:
            self._synced.result()


def _sync(checkpoint: Checkpoint, epoch: int, synced: Future[None]) -> None:
    try:
        checkpoint.make_durable(epoch)
    except BaseException as error:  # noqa: BLE001 - it is raised where the flusher waits
        synced.set_exception(error)
    else:
        synced.set_result(None)
