"""A checkpoint is deleted while epochs wait in a log that lies elsewhere: nothing points to it any more."""

from __future__ import annotations

import json
import logging
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from state_backends import StorageOptions, child_url, open_backend
from tests.protocol.engine import NOW_US, World
from tests.protocol.operators import query
from tests.s3 import S3
from wal_sink import errors
from wal_sink.admin.adopt import plan_adopt
from wal_sink.spark.messages import say_abandoned
from wal_sink.testing.memory_target import MemoryTarget
from wal_sink.wal.location import AbandonedLog, Location, abandoned_logs
from wal_sink.wal.log import Log


class Place:
    """A place for a checkpoint, and one for logs."""

    def __init__(self, root: str, options: dict[str, object]) -> None:
        self.options = options
        self.location = Location(
            f"{root}/checkpoint", f"{root}/logs", {"s3": StorageOptions(options)}
        )

    def world(self, checkpoint: str | None = None, old: World | None = None) -> World:
        """Return a query, which has published nothing yet; or an old one at another checkpoint."""
        place = open_backend(checkpoint or self.location.checkpoint, self.options)
        made = World(place, place, old.target if old else None)
        if old is not None:
            made.query_id, made.store, made.clock = old.query_id, old.store, old.clock
        made.log_backend = open_backend(child_url(self.location.logs, made.query_id), self.options)
        self.location = self.location._replace(
            checkpoint=self.location.checkpoint if checkpoint else made.checkpoint.url
        )
        return made

    def found(self, world: World) -> list[AbandonedLog]:
        """Look as a start does."""
        return abandoned_logs(self.location, world.query_id)


@pytest.fixture(
    params=[
        "local",
        pytest.param("s3", marks=pytest.mark.s3),
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "s3":
        s3: S3 = request.getfixturevalue("s3")
        yield Place(s3.bucket(), s3.options)
    else:
        yield Place(f"file://{tmp_path}", {})


def delete_checkpoint(world: World) -> None:
    world.checkpoint.delete(world.checkpoint.list())


def waiting(place: Place) -> World:
    """A query of which epoch 0 is flushed, and 1 to 3 wait; its checkpoint is deleted."""
    world = place.world()
    run = world.run().flushed_batches([("a", 1)])
    for value in (2, 3, 4):
        run.batch([("a", value), (f"b{value}", value)])
    delete_checkpoint(world)
    return world


def test_epochs_that_wait_are_found_by_the_place_of_their_checkpoint(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Said with the log, as the new query starts; logs of other checkpoints are not looked into (rule 1)."""
    other = place.world(child_url(place.location.logs.rpartition("/")[0], "other"))
    other.run().batch([("x", 1)])
    old, new = waiting(place), place.world()
    ((query_id, log, epochs),) = place.found(new)
    assert (query_id, log.url, epochs) == (old.query_id, old.log_backend.url, (1, 2, 3))
    new.run().batch([("a", 1)])
    assert [each.query_id for each in place.found(new)] == [old.query_id], "not its own"
    with caplog.at_level(logging.WARNING):
        say_abandoned(new.query_id, place.location)
    (said,) = [record.getMessage() for record in caplog.records]
    assert old.query_id in said
    assert f"Epochs 1 to 3 are in {old.log_backend.url}, not flushed" in said


def test_what_is_flushed_or_cannot_be_read_is_passed_over(place: Place) -> None:
    """A log that is done, one without an identity, one that is torn: none keeps a query from starting."""
    old = place.world()
    old.run().flushed_batches([("a", 1)])
    delete_checkpoint(old)
    new = place.world()
    logs = open_backend(place.location.logs, place.options)
    logs.create("no-identity/runs/000001.json", b"{}")
    logs.create("torn/log.json", b"{")
    logs.create("a-file", b"x")
    assert place.found(new) == []
    say_abandoned(new.query_id, place.location._replace(logs="nowhere://x"))


def test_a_flusher_that_lives_says_what_waits(place: Place) -> None:
    """It stops, as the checkpoint is now that of another query; it does not say that rows may be deleted."""
    old = waiting(place)
    place.world().run().batch([("a", 1)])
    with pytest.raises(errors.WrongOwner, match=r"Epochs 1 to 3 are in .* not flushed"):
        old.flush()
    old.log_backend.delete(old.log_backend.list("manifests/"))
    with pytest.raises(errors.WrongOwner, match="can be deleted"):
        old.flush()


def test_the_commands_of_the_text_make_such_a_checkpoint(tmp_path: Path) -> None:
    """As the next test does; the last epoch has a file of Spark's format."""
    text = errors.abandoned_log("file:///my logs/ab-c", (2, 3))
    commands = text.partition("To flush what is there: ")[2].partition(". Only")[0]
    make, adopt, flush = commands.split(" && wal-sink ")
    subprocess.run(["sh", "-c", make], cwd=tmp_path, check=True)
    assert json.loads((tmp_path / "stand-in/metadata").read_bytes()) == {"id": "ab-c"}
    assert (tmp_path / "stand-in/commits/3").read_bytes() == b"v1\n{}"
    assert adopt == "adopt stand-in --wal 'file:///my logs'"
    assert flush == "flush stand-in --wal 'file:///my logs'"


@pytest.mark.parametrize("anew", [False, True])
def test_what_waits_is_flushed_from_a_checkpoint_that_says_the_same(
    place: Place, anew: bool
) -> None:
    """Two files, `adopt`, `flush`; beside the new query (rule 1)."""
    old = waiting(place)
    new = place.world(old=None)
    if anew:
        new.run().batch([("z", 1)])
    stand_in = place.world(f"{place.location.checkpoint}-old", old)
    stand_in.checkpoint.create("metadata", json.dumps({"id": old.query_id}).encode())
    stand_in.checkpoint.create("commits/3", b"v1\n{}")
    with pytest.raises(errors.WrongOwner):
        stand_in.flush()
    asked = query(stand_in)._replace(stores=place.location.stores)
    plan_adopt(asked, stand_in.target, NOW_US).carry_out(NOW_US)
    stand_in.flush()
    assert isinstance(old.target, MemoryTarget)
    assert stand_in.table() == {"a": 4, "b2": 2, "b3": 3, "b4": 4}
    assert Log(old.log_backend).attempts() == ()
    assert place.found(new) == []
