"""Writes windows as a Spark job does, without Spark."""

from __future__ import annotations

import pickle
import uuid
from dataclasses import replace

from wal_sink.flush.reporter import Reporter
from wal_sink.flush.target_connection import TargetConnection
from wal_sink.flush.window import Window, share_out
from wal_sink.flush.write import Answer, FlushTask, most_severe
from wal_sink.targets.base import RowsRefused, Target
from wal_sink.wal.store import LogStore


class Job:
    """Runs the tasks of a window one after the other, the last one first.

    :param target: the target of the tasks; None for the target of the query.
    :param store: the log from which the tasks read segments.
    :param twice: True runs each task twice. One of its two answers counts.
    """

    def __init__(
        self,
        target: Target | None = None,
        store: LogStore | None = None,
        rows_per_second: int | None = None,
        *,
        twice: bool = False,
    ) -> None:
        self._target, self._store = target, store
        self._rate, self._runs = rows_per_second, 1 + twice
        self._key = uuid.uuid4().hex

    def __call__(self, window: Window, connection: TargetConnection, _reporter: Reporter) -> bool:
        ranges = [part for manifest in window.manifests for part in window.ranges(manifest)]
        shares = share_out(ranges, above_bytes=0, slots=6)
        assert len(shares) == 5
        former = window.pipeline
        pipeline = replace(
            former, target=self._target or former.target, store=self._store or former.store
        )
        task = FlushTask(replace(window, pipeline=pipeline), self._key, self._rate)
        sent = [pickle.loads(pickle.dumps(share)) for share in reversed(shares)]
        every = [task(share) for share in sent for _ in range(self._runs)]
        answers = every[:: self._runs]
        received: list[Answer] = [pickle.loads(pickle.dumps(answer)) for answer in answers]
        for answer in received:
            connection.add_receipts(answer.receipts)
        if refused := [row for answer in received for row in answer.refused]:
            raise RowsRefused(refused)
        if failed := [answer.error for answer in received if answer.error is not None]:
            raise most_severe(failed)
        return True
