"""Publishes micro-batches without Spark: with a budget, or as the data source and `batch_writer` do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.protocol.engine import Rows, Run, World
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.configuration import Configuration, Destination
from wal_sink.model.manifest import Manifest
from wal_sink.options import SinkOptions
from wal_sink.publish.micro_batch import MicroBatch
from wal_sink.publish.publisher import Publisher
from wal_sink.wal.location import locate


class Driver:
    """The driver process of a run.

    :param max_bytes: `wal.maxBytes`. With 1, one epoch fills the log.
    """

    def __init__(self, run: Run, max_bytes: int = 1, on_full: str = "block") -> None:
        self.run = run
        self.max_bytes, self.on_full = max_bytes, on_full
        self.pauses = 0

    def publish(
        self, rows: Rows, meanwhile: Callable[[int], None] = lambda _pause: None
    ) -> Manifest | None:
        """Run a micro-batch up to the return of `commit()`. `meanwhile` is called while it waits."""

        def sleep(seconds: float) -> None:
            self.pauses += 1
            self.run.query.clock.us += 10_000_000
            assert self.pauses < 200, "the publisher never ends its wait"
            meanwhile(self.pauses)

        run = self.run
        run.write_offsets()
        publisher = Publisher(
            store=run.store,
            checkpoint=Checkpoint(run.checkpoint),
            plans=run.plans,
            max_bytes=self.max_bytes,
            on_full=self.on_full,  # type: ignore[arg-type]
            options=run.query.options,
            clock_us=run.query.clock,
            sleep=sleep,
        )
        return publisher.publish(run.execution, run.tasks(rows))

    def batch(self, rows: Rows, meanwhile: Callable[[int], None] = lambda _pause: None) -> None:
        self.publish(rows, meanwhile)
        self.run.write_commit([rows])


def query_in(folder: Path) -> World:
    """Return a query whose checkpoint and log are in a folder."""
    location = locate(str(folder))
    world = World(location.open_checkpoint()._backend, location.open_log("query"))
    world.query_id = "query"
    return world


def micro_batch(run: Run, folder: Path) -> MicroBatch:
    """Return the `MicroBatch` of a run's next micro-batch."""
    only = Destination("memory", "", "memory", run.query.store_target)
    sink = SinkOptions(checkpoint=str(folder))
    return MicroBatch(Configuration(sink, (only,), locate(str(folder))), run.plans)
