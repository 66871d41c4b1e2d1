"""A log that looks as after years: so many starts, and so many flushed epochs that `wal.retention` keeps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import msgspec
from wal_sink.model.records import Claim, FlushedWindow, Ticket
from wal_sink.wal.log import Log
from wal_sink.wal.retention import put_back, retained_paths
from wal_sink.wal.trim import RECORDS_KEPT

from tests.protocol.engine import World
from wal_sink.model import paths
from wal_sink.model.manifest import Attempt

Write = Callable[[Mapping[str, bytes]], None]


def let_age(world: World, *, starts: int, epochs: int, write: Write | None = None) -> None:
    """Make what that many starts and flushed epochs have left; the next run goes on after them.

    :param world: a new query, with a `wal.retention`.
    :param starts: from 1 on: claims of generations, and tickets.
    :param epochs: from 1 on: retained.
    :param write: writes objects of the log; None: the log's store.
    """
    world.run().flushed_batches([("a", 1)])
    write = write or world.log_backend.create_missing
    _add_starts(write, starts)
    _add_epochs(world, write, epochs)


def leave_in_place(world: World) -> None:
    """Leave what is kept where a flusher leaves it that dies before it moves anything."""
    put_back(world.log, -1)
    for epoch, copies in retained_paths(world.log).items():
        record = world.log.read(paths.RETAINED_RECORD, epoch)
        if record is not None and not recorded_in(world.log, epoch):
            world.log.record_flushed([record])
        world.log.delete(copies)


def recorded_in(log: Log, *epochs: int) -> list[str]:
    """Return the paths of the objects that have the records of some epochs."""
    return log.paths_of(paths.FLUSHED, lambda name: any(map(name.covers, epochs)))


def record_each(log: Log, lost: Collection[int] = ()) -> None:
    """Record each flushed epoch as a window of its own; the records of some are lost."""
    records = log.flushed_since(-1)
    log.delete(log.paths_of(paths.FLUSHED, lambda _: True))
    for record in records:
        if record.epoch not in lost:
            log.record_flushed([record])


def _add_starts(write: Write, starts: int) -> None:
    objects = {}
    for generation in range(2, starts + 1):
        run_id = f"run-{generation}"
        ticket = Ticket(run_id=run_id, generation=generation - 1)
        objects[paths.TICKET.path(run_id)] = ticket.to_json()
        objects[paths.CLAIM.path(generation)] = Claim(
            run_id=run_id, options={}, early=False, epoch=0
        ).to_json()
    write(objects)


def _add_epochs(world: World, write: Write, epochs: int) -> None:
    backend, record = world.log_backend, world.log.flushed(0)
    assert record is not None
    manifest = backend.read(paths.RETAINED_MANIFEST.path(Attempt(0, record.generation)))
    objects = {}
    for epoch in range(1, epochs):
        copy = msgspec.structs.replace(record, epoch=epoch)
        objects[paths.RETAINED_RECORD.path(epoch)] = copy.to_json()
        objects[paths.RETAINED_MANIFEST.path(Attempt(epoch, record.generation))] = manifest
        if epoch >= epochs - RECORDS_KEPT:
            name = paths.WindowName(epoch, epoch, copy.base_us)
            objects[paths.FLUSHED.path(name)] = FlushedWindow(epochs=(copy,)).to_json()
    write(objects)
    if epochs > RECORDS_KEPT:
        backend.delete(recorded_in(world.log, 0))
    last = epochs - 1
    row = world.state
    world.store.ledger[world.query_id] = msgspec.structs.replace(row, flushed=last, last=None)
    if last:
        for folder in ("offsets", "commits"):
            world.checkpoint.create(f"{folder}/{last}", world.checkpoint.read(f"{folder}/0"))
            world.checkpoint.delete([f"{folder}/0"])
