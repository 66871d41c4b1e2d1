"""A process in which a run publishes, with a budget; each of its pauses takes ten seconds."""

from __future__ import annotations

from collections.abc import Callable

from tests.protocol.engine import Rows, Run
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.model.manifest import Manifest
from wal_sink.publish.publisher import Publisher, Terms


class Driver:
    """The process in which a run of a query publishes.

    :param max_bytes: `wal.maxBytes`; 1 means that one epoch fills the log.
    """

    def __init__(self, run: Run, max_bytes: int = 1, on_full: str = "block") -> None:
        self.run = run
        self.max_bytes, self.on_full = max_bytes, on_full
        self.pauses = 0

    def publish(
        self, rows: Rows, meanwhile: Callable[[int], None] = lambda _pause: None
    ) -> Manifest | None:
        """Run a batch up to the return of `commit()`; `meanwhile` is called when it waits."""

        def sleep(seconds: float) -> None:
            self.pauses += 1
            self.run.query.clock.us += 10_000_000
            assert self.pauses < 200, "it waits for ever"
            meanwhile(self.pauses)

        run = self.run
        run.write_offsets()
        checkpoint = Checkpoint(run.checkpoint)
        terms = Terms(run.plans, self.max_bytes, self.on_full, run.query.options)  # type: ignore[arg-type]
        publisher = Publisher(run.store, checkpoint, terms, clock_us=run.query.clock, sleep=sleep)
        return publisher.publish(run.execution, run.tasks(rows))

    def batch(self, rows: Rows, meanwhile: Callable[[int], None] = lambda _pause: None) -> None:
        """Run a batch to the end."""
        self.publish(rows, meanwhile)
        self.run.write_commit([rows])
