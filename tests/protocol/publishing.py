"""A process in which a run publishes, with a budget."""

from __future__ import annotations

from collections.abc import Callable

from tests.protocol.engine import Rows, Run
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.model.manifest import Manifest
from wal_sink.progress.backlog import BacklogReaders
from wal_sink.protocol.budget import Budget
from wal_sink.publish.backpressure import Backpressure
from wal_sink.publish.publisher import Publisher


class Driver:
    """The process in which a run of a query publishes; a pause of its takes ten seconds.

    :param max_bytes: `wal.maxBytes`; 1 means that one epoch fills the log.
    """

    def __init__(
        self,
        run: Run,
        max_bytes: int = 1,
        on_full: str = "block",
        *,
        same: BacklogReaders | None = None,
    ) -> None:
        self.run = run
        self.budget = Budget(max_bytes, on_full)  # type: ignore[arg-type]
        self.backlogs = same or BacklogReaders()
        self.now_s = 0.0
        self.pauses = 0

    def publish(
        self, rows: Rows, meanwhile: Callable[[int], None] = lambda _pause: None
    ) -> Manifest | None:
        """Run a batch up to the return of `commit()`; `meanwhile` is called when it waits."""

        def sleep(seconds: float) -> None:
            self.pauses += 1
            self.now_s += 20 * seconds
            self.run.query.clock.us += int(20 * seconds * 1_000_000)
            assert self.pauses < 200, "it waits for ever"
            meanwhile(self.pauses)

        self.run.write_offsets()
        checkpoint = Checkpoint(self.run.checkpoint)
        room = Backpressure(
            self.budget,
            checkpoint,
            self.run.log,
            clock_us=self.run.query.clock,
            now_s=lambda: self.now_s,
            sleep=sleep,
            backlogs=self.backlogs,
        )
        publisher = Publisher(
            self.run.log,
            checkpoint,
            plan=self.run.plan.key,
            options=self.run.options,
            clock_us=self.run.query.clock,
            backpressure=room,
        )
        return publisher.publish(self.run.execution, self.run.tasks(rows))

    def batch(self, rows: Rows) -> None:
        """Run a batch to the end."""
        self.publish(rows)
        self.run.write_commit([rows])
