"""Rule 12 after Spark has purged `offsets/`: what its offline state repartition made is still known."""

from __future__ import annotations

import pytest

from tests.protocol.engine import World
from tests.protocol.operators import files, restore
from tests.protocol.state_repartition import batch, go_on, pass_over, repartition
from wal_sink.errors import MissingManifest, WrongOwner
from wal_sink.model import paths
from wal_sink.testing.faults import Faults

STORES = ("memory", "local")


@pytest.mark.parametrize("retained", [1, 2, 5])
@pytest.mark.parametrize("published", [True, False])
def test_rule_12_what_was_passed_over_stays_so_when_offsets_are_purged(
    world: World, retained: int, *, published: bool
) -> None:
    """The target is away. Its data is planned again: flushed, it would be there twice."""
    pass_over(world, published=published)
    run = world.run()
    assert batch(run, retained, [("again", 2)], offset="1") == 3
    go_on(run, retained)
    assert "offsets/2" not in world.checkpoint.list("offsets/")
    assert world.flushed() == {"a": 1, "again": 2, "later": retained + 2}
    assert world.log_backend.list(paths.SEGMENT.folder) == []
    assert world.log.attempts() == ()


@pytest.mark.parametrize("retained", [1, 5])
@pytest.mark.parametrize("partitions", [(8,), (8, 4, 2)])
@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("died", [True, False])
def test_rule_12_a_repartition_does_not_stop_the_flush_when_offsets_are_purged(
    world: World, retained: int, partitions: tuple[int, ...], *, flushed: bool, died: bool
) -> None:
    """Several in a row; with a run that dies after it has purged and before it publishes."""
    world.run().batch([("a", 1)])
    if flushed:
        world.flush()
    for number, wanted in enumerate(partitions):
        repartition(world, last_kept=number, batch=number + 1, partitions=wanted)
    if died:
        run = world.run()
        run.write_offsets()
        world.checkpoint.delete(
            f"offsets/{epoch}" for epoch in range(run.next - retained) if retained == 1
        )
    go_on(world.run(), retained)
    assert "offsets/1" not in world.checkpoint.list("offsets/")
    assert world.flushed() == {"a": 1, "later": retained + 2}


@pytest.mark.parametrize("request_", ["create", "replace"])
def test_rule_12_a_note_that_cannot_be_renewed_stays(world: World, request_: str) -> None:
    """The disk is full when the next run starts; the run before goes on, and purges what tells."""
    world.run().flushed_batches([("a", 1)])
    repartition(world, last_kept=0, batch=1, partitions=8)
    older = world.run()
    batch(older, 2, [("later", 0)])
    faults = Faults(
        at=0, error=lambda: OSError("full"), matching=f"{request_} {paths.WITHOUT_SINK.folder}"
    )
    world.run(faults).end()
    assert bool(faults.injected) == (request_ == "replace")
    go_on(older, 1)
    assert world.checkpoint.list("offsets/")[0] > "offsets/2"
    assert world.flushed() == {"a": 1, "later": 3}


@pytest.mark.parametrize("offset", ["1", "7"])
@pytest.mark.parametrize("flush_at_once", [True, False])
def test_rule_12_a_note_ends_when_the_checkpoint_is_set_back(
    world: World, offset: str, *, flush_at_once: bool
) -> None:
    """Spark computes the epoch again: its rows are flushed, although the note is still there."""
    world.run().batch([("a", 1)])
    checkpoint = files(world.checkpoint)
    world.run().publish([("failed", 2)])
    world.checkpoint.create("commits/1", b'v1\n{"nextBatchWatermarkMs":0}')
    repartition(world, last_kept=0, batch=2, partitions=8)
    world.run().end()
    assert world.log.read(paths.WITHOUT_SINK, 1) is not None
    restore(world.checkpoint, checkpoint)
    run = world.run()
    assert batch(run, 1, [("b", 2)], offset=offset) == 1
    if flush_at_once:
        assert world.flushed() == {"a": 1, "b": 2}
    go_on(run, 1)
    assert world.flushed() == world.expected() == {"a": 1, "b": 2, "later": 3}


@pytest.mark.parametrize("offset", ["0", "7"])
@pytest.mark.parametrize("purged", [True, False])
def test_rule_12_what_was_published_before_the_checkpoint_was_set_back_is_no_repartition(
    world: World, offset: str, *, purged: bool
) -> None:
    """The repartition makes an epoch that a run had published and committed, also from the same offsets."""
    world.run().batch([("a", 1)])
    checkpoint = files(world.checkpoint)
    world.run().batch([("behind", 2)], offset=offset)
    restore(world.checkpoint, checkpoint)
    repartition(world, last_kept=0, batch=1, partitions=8)
    run = world.run()
    if purged:
        go_on(run, 1)
    else:
        run.batch([("later", 3)])
    assert world.flushed() == {"a": 1, "later": 3}


@pytest.mark.parametrize("retained", [1, 5])
def test_rule_12_a_second_repartition_of_the_same_number_is_noted_too(
    world: World, retained: int
) -> None:
    """Spark went back behind the first one, computed the epoch, and went back behind that."""
    world.run().batch([("a", 1)])
    checkpoint = files(world.checkpoint)
    repartition(world, last_kept=0, batch=1, partitions=8)
    world.run().end()
    restore(world.checkpoint, checkpoint)
    world.run().batch([("behind", 2)])
    restore(world.checkpoint, checkpoint)
    repartition(world, last_kept=0, batch=1, partitions=4)
    run = world.run()
    assert batch(run, retained, [("again", 2)], offset="1") == 2
    go_on(run, retained)
    assert world.flushed() == {"a": 1, "again": 2, "later": retained + 2}


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_rule_12_without_a_note_a_lost_manifest_is_an_error(world: World, kept: int) -> None:
    """Nothing but a repartition is noted."""
    run = world.run().batches(*([(f"k{number}", number)] for number in range(3)))
    run.end()
    world.log.delete(path for path in world.log_backend.list(paths.MANIFEST.folder)[1:kept])
    go_on(world.run(), 2)
    assert world.log_backend.list(paths.WITHOUT_SINK.folder) == []
    if kept > 1:
        with pytest.raises(MissingManifest, match="Epoch 1 "):
            world.flush()
    else:
        assert world.flushed() == world.expected()


def test_rule_12_a_log_of_another_checkpoint_gets_no_note(world: World) -> None:
    """A copied checkpoint must not write about its epochs into the log of the original."""
    world.run().batch([("a", 1)])
    repartition(world, last_kept=0, batch=1, partitions=8)
    world.checkpoint.url = "file:///copied"
    with pytest.raises(WrongOwner):
        world.run()
    assert world.log_backend.list(paths.WITHOUT_SINK.folder) == []


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize("started", [True, False])
@pytest.mark.parametrize("retained", [1, 2, 5])
def test_rule_12_a_batch_left_out_stays_so_though_both_numbers_were_published_before(
    world: World, retained: int, *, started: bool, planned: bool
) -> None:
    """Spark went back behind two epochs, and a run failed there, which the repartition passes over.

    :param planned: the first of them was planned still.

    What it makes has a manifest, too: that of the attempt from before. Epoch 3 has the data again.
    """
    world.run().batch([("a", 1)])
    checkpoint = files(world.checkpoint)
    world.run().batches([("b", 2)], [("c", 3)])
    plan = world.checkpoint.read("offsets/1")
    restore(world.checkpoint, checkpoint)
    if planned:
        world.checkpoint.create("offsets/1", plan)
    world.run().write_offsets()
    world.checkpoint.create("commits/1", b'v1\n{"nextBatchWatermarkMs":0}')
    repartition(world, last_kept=0, batch=2, partitions=8)
    if not started:
        assert world.flushed() == {"a": 1}
    run = world.run()
    batch(run, retained, [("again", 2)], offset="1")
    assert world.flushed() == {"a": 1, "again": 2}
