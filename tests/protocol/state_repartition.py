"""Spark's offline state repartition, and runs that purge what lies before it, as the engine plays them."""

from __future__ import annotations

import json

from tests.protocol.engine import Rows, Run, World


def repartition(world: World, last_kept: int, batch: int, partitions: int) -> None:
    """Do as Spark's offline state repartition does: copy a batch, change its partitions, commit it."""
    backend = world.checkpoint
    version, line, *sources = backend.read(f"offsets/{last_kept}").decode().split("\n")
    metadata = json.loads(line)
    metadata["conf"]["spark.sql.shuffle.partitions"] = str(partitions)
    text = "\n".join([version, json.dumps(metadata), *sources])
    backend.create(f"offsets/{batch}", text.encode())
    backend.create(f"commits/{batch}", backend.read(f"commits/{last_kept}"))


def pass_over(world: World, *, published: bool) -> None:
    """Run epoch 0, then let a run fail in epoch 1; the repartition passes over that, and makes epoch 2.

    :param published: the run has published the epoch before it failed.
    """
    world.run().batch([("a", 1)])
    failed = world.run()
    failed.write_offsets()
    appended = failed.tasks([("failed", 2)])
    if published:
        failed.commit(appended)
    world.checkpoint.create("commits/1", b'v1\n{"nextBatchWatermarkMs":0}')
    repartition(world, last_kept=0, batch=2, partitions=8)


def batch(run: Run, retained: int, *partitions: Rows, offset: str | None = None) -> int:
    """Run one micro-batch; while it is planned, Spark purges what lies `minBatchesToRetain` before it."""
    run.write_offsets(offset)
    checkpoint = run.query.checkpoint
    for folder in ("offsets/", "commits/"):
        checkpoint.delete(
            path
            for path in checkpoint.list(folder)
            if int(path.removeprefix(folder)) < run.next - retained
        )
    return run.batch(*partitions, offset=offset)


def go_on(run: Run, retained: int) -> None:
    """Run batches until everything before them is purged."""
    for number in range(retained + 3):
        batch(run, retained, [("later", number)])
