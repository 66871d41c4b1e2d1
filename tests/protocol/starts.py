"""Runs that start: what they claim, and what they leave."""

from __future__ import annotations

import os

from tests.protocol.engine import Run, World
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.model import paths
from wal_sink.model.records import Claim, Ticket
from wal_sink.protocol.budget import Budget
from wal_sink.publish.start import claim_early


def killed(world: World, *, size: int = 1) -> Run:
    """Start a run that is killed when a task has written its segment."""
    run = world.run()
    run.write_offsets()
    run.tasks([(os.urandom(size).hex(), 1)])
    return run


def room(world: World, run: Run, max_bytes: int) -> None:
    """Do what a run does as it starts."""
    claim_early(run.log, Checkpoint(run.checkpoint), run.run_id, Budget(max_bytes, "block"), {})


def starts(world: World, number: int) -> None:
    """Let so many runs start and claim a generation each, and publish nothing."""
    first = world.log.highest_generation() + 1
    for generation in range(first, first + number):
        run_id = f"start-{generation}"
        ticket = Ticket(run_id=run_id, generation=generation - 1)
        world.log.create(paths.TICKET, run_id, ticket)
        world.log.create_or_read(
            paths.CLAIM, generation, Claim(run_id=run_id, options={}, early=False, epoch=0)
        )
