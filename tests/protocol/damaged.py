"""A log with five epochs, two of them flushed; what breaks in it, and how a query goes on without it."""

from __future__ import annotations

from state_backends import StateBackend, open_backend
from tests.protocol.engine import NOW_US, World
from tests.protocol.operators import edit, look, query
from tests.protocol.raw import manifest_file, parsed
from wal_sink.admin.flusher_at_work import PATIENCE, Patience
from wal_sink.admin.skip import Skipped, plan_skip
from wal_sink.model import paths
from wal_sink.model.manifest import Attempt
from wal_sink.testing.oracle import judge

BROKEN = 2
"""The epoch that is damaged; those before it are flushed, or can be."""
EPOCHS = 5


def segments(world: World, epoch: int = BROKEN) -> list[str]:
    return world.log_backend.list(paths.segment_folder(epoch))


def manifest_path(epoch: int = BROKEN) -> str:
    return paths.MANIFEST.path(Attempt(epoch, 1))


def flip_a_byte(world: World) -> str:
    path = segments(world)[0]
    data = bytearray(world.log_backend.read(path))
    data[len(data) // 2] ^= 1
    edit(world.log_backend, path, bytes(data))
    return path


def truncate(world: World) -> str:
    path = segments(world)[1]
    edit(world.log_backend, path, world.log_backend.read(path)[:-7])
    return path


def delete_segment(world: World, epoch: int = BROKEN) -> str:
    path = segments(world, epoch)[1]
    edit(world.log_backend, path, None)
    return path


def tear_manifest(world: World) -> str:
    edit(world.log_backend, manifest_path(), world.log_backend.read(manifest_path())[:-20])
    return manifest_path()


def change_manifest(world: World, **changes: object) -> str:
    fields = parsed(world.log_backend.read(manifest_path()))
    edit(world.log_backend, manifest_path(), manifest_file(fields | changes))
    return manifest_path()


def delete_manifest(world: World) -> str:
    edit(world.log_backend, manifest_path(), None)
    return paths.MANIFEST.folder


def fill(world: World) -> None:
    """Flush two epochs; let three wait, with two segments each."""
    run = world.run()
    for epoch in range(EPOCHS):
        run.batch([(f"a{epoch}", epoch), ("last", epoch)], [(f"b{epoch}", epoch)])
        if epoch == 1:
            world.flush()


def upto(world: World, epoch: int) -> dict[str, int]:
    """The table when everything up to an epoch is flushed and nothing after it."""
    table: dict[str, int | None] = {}
    for number in range(epoch + 1):
        table.update(world.committed[number])
    return {key: value for key, value in table.items() if value is not None}


def elsewhere(world: World) -> StateBackend:
    """A place for the files of what is skipped, on the same kind of store."""
    url = f"{world.log_backend.url.rpartition('/')[0]}/skipped"
    return open_backend(url, world.storage_options)


def give_up(
    world: World, epoch: int = BROKEN, *, begun: bool = True, patience: Patience = PATIENCE
) -> Skipped:
    """`wal-sink skip --to`."""
    to = elsewhere(world)
    plan = plan_skip(
        query(world)._replace(patience=patience), world.target, epoch, to, NOW_US, begun=begun
    )
    return plan.carry_out(NOW_US, "as a test")


def goes_on_without(world: World, lost: dict[str, int]) -> None:
    """Everything is flushed but what was given up, and the mark is contiguous."""
    world.flush()
    everything = upto(world, EPOCHS - 1)
    verdict = judge(everything.items(), world.table().items())
    assert (verdict.missing, verdict.extra) == (len(lost), 0), verdict
    assert {key: value for key, value in everything.items() if key not in world.table()} == lost
    row = world.state
    assert (row.flushed, row.begun) == (EPOCHS - 1, None)
    assert world.log.flushed_epochs() == list(range(EPOCHS))
    assert world.log.attempts() == ()
    assert world.log_backend.list(paths.SEGMENT.folder) == []
    assert look(world).findings == ()


def of_epoch(world: World, epoch: int = BROKEN) -> list[str]:
    """Everything that the log holds of an epoch."""
    found = [paths.MANIFEST.path(a) for a in world.log.attempts() if a.epoch == epoch]
    return sorted([*segments(world, epoch), *found])


def truncate_ledger(world: World) -> None:
    del world.store.ledger[world.query_id]
