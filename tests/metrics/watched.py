"""A played query whose flusher counts metrics, and the values of a scrape."""

from __future__ import annotations

import time
import uuid

from state_backends import open_backend
from tests.protocol.engine import World
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import WalSinkError
from wal_sink.flush.flusher import Flusher
from wal_sink.flush.pipeline import Pipeline
from wal_sink.flush.reporter import Reporter
from wal_sink.metrics.prometheus import Metrics, QueryMetrics
from wal_sink.protocol.retention import Retention
from wal_sink.testing.faults import Faults, FaultyBackend, FaultyTarget


def new_world() -> World:
    """Return a new query, in memory."""
    name = f"memory://{uuid.uuid4().hex}"
    world = World(open_backend(f"{name}/checkpoint"), open_backend(f"{name}/log"))
    world.clock.us = time.time_ns() // 1_000
    return world


class Watched:
    """A flusher of a query, with metrics.

    :param faults: injected into log, checkpoint and target.
    :param metrics: the metrics of the process, if it flushes other queries, too.
    """

    def __init__(
        self, world: World, faults: Faults | None = None, metrics: Metrics | None = None
    ) -> None:
        faults = faults or Faults()
        self.world = world
        self.metrics = metrics or Metrics()
        store = FaultyBackend(world.log_backend, faults)
        (name,) = world.targets
        checkpoint = Checkpoint(FaultyBackend(world.checkpoint, faults))
        self.query_metrics: QueryMetrics = self.metrics.watch(
            world.query_id,
            Checkpoint(world.checkpoint),
            world.log_backend,
            name,
            "shop.orders",
            several=False,
        )
        self.reporter = Reporter(store, name, world.clock, metrics=self.query_metrics)
        target = FaultyTarget(world.target, faults)
        self.flusher = Flusher(
            Pipeline(
                world.query_id,
                store,
                checkpoint,
                target,
                target_name=name,
                several=False,
                retention=Retention(us=0, bytes=0),
            ),
            self.reporter,
            clock_us=world.clock,
        )

    def flush(self, tries: int = 100) -> list[WalSinkError]:
        """Flush, as a loop does, until nothing is pending; return the errors."""
        errors: list[WalSinkError] = []
        for _ in range(tries):
            try:
                done = self.flusher.run_once()
            except WalSinkError as error:
                errors.append(error)
                self.reporter.failed(error)
                self.flusher.close()
                continue
            self.reporter.succeeded()
            if done.idle:
                break
        return errors

    def value(self, name: str, **labels: str) -> float | None:
        """Return the value of a metric in a scrape."""
        return self.metrics.registry.get_sample_value(
            name, {"query_id": self.world.query_id, "target": "", **labels}
        )
