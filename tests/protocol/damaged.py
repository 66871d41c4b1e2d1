"""A log with five epochs, two of which are flushed, and ways to damage the log."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.protocol.engine import World
from tests.protocol.operators import edit
from tests.protocol.raw import manifest_file, parsed
from wal_sink.model import paths
from wal_sink.model.state import State
from wal_sink.protocol import state as protocol
from wal_sink.protocol.state import Actor
from wal_sink.wal.store import update

BROKEN = 2
"""The epoch that is damaged. The epochs before it are flushed."""
EPOCHS = 5


def segments(world: World, epoch: int = BROKEN) -> list[str]:
    return world.log_backend.list(paths.segment_folder(epoch))


def manifest_path(world: World, epoch: int = BROKEN) -> str:
    prefix = f"manifests/{epoch:020}-"
    (path,) = (path for path in world.log_backend.list("manifests/") if path.startswith(prefix))
    return path


def state_path(world: World) -> str:
    return world.log_backend.list("state/")[-1]


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
    path = manifest_path(world)
    edit(world.log_backend, path, world.log_backend.read(path)[:-20])
    return path


def change_manifest(world: World, **changes: object) -> str:
    path = manifest_path(world)
    fields = parsed(world.log_backend.read(path))
    edit(world.log_backend, path, manifest_file(fields | changes))
    return path


def delete_manifest(world: World) -> str:
    edit(world.log_backend, manifest_path(world), None)
    return "manifests/"


def delete_plan(world: World) -> str:
    (path,) = world.log_backend.list("plans/")
    edit(world.log_backend, path, None)
    return path


def tear_plan(world: World) -> str:
    (path,) = world.log_backend.list("plans/")
    edit(world.log_backend, path, world.log_backend.read(path)[:-20])
    return path


def change_plan(world: World) -> str:
    """Let the plan name another table."""
    (path,) = world.log_backend.list("plans/")
    plan = parsed(world.log_backend.read(path))
    edit(world.log_backend, path, json.dumps(plan | {"table": "other"}).encode())
    return path


def tear_state(world: World) -> str:
    path = state_path(world)
    edit(world.log_backend, path, world.log_backend.read(path)[:-20])
    return path


def future_state(world: World) -> str:
    path = state_path(world)
    data = world.log_backend.read(path).replace(b'"format": 1', b'"format": 2')
    edit(world.log_backend, path, data)
    return path


def delete_states(world: World) -> str:
    world.log_backend.delete(world.log_backend.list("state/"))
    return "state/"


def fill(world: World) -> None:
    """Flush two epochs, and leave three pending. Each has two segments."""
    run = world.run()
    for epoch in range(EPOCHS):
        run.batch([(f"a{epoch}", epoch), ("last", epoch)], [(f"b{epoch}", epoch)])
        if epoch == 1:
            world.flush()


def change(world: World, transition: Callable[[State, Actor], State | None]) -> None:
    """Change the state as an operator's command does."""
    update(world.log_backend, lambda state: transition(state, Actor("operator", world.clock())))


def give_up(world: World, epoch: int, name: str = "") -> None:
    """Do what `wal-sink give-up CHECKPOINT --epoch N` does."""
    target = name or next(iter(world.targets))
    change(world, lambda state, actor: protocol.give_up_epoch(state, target, epoch, actor))
