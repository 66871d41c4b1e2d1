"""A checkpoint is deleted while epochs are pending in a log elsewhere: nothing points to it any more."""

from __future__ import annotations

import json
import logging
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from state_backends import StorageOptions, child_url, open_backend
from tests.protocol.engine import World
from tests.protocol.test_restored import adopt
from tests.support.s3 import S3
from wal_sink import errors
from wal_sink.spark.messages import log_abandoned
from wal_sink.wal.location import AbandonedLog, Location, abandoned_logs


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
            made.query_id, made.clock = old.query_id, old.clock
        made.log_backend = open_backend(child_url(self.location.logs, made.query_id), self.options)
        self.location = self.location._replace(
            checkpoint=self.location.checkpoint if checkpoint else made.checkpoint.url
        )
        return made

    def found(self, world: World) -> list[AbandonedLog]:
        """Return what a start finds."""
        return abandoned_logs(self.location, world.query_id)


@pytest.fixture(
    params=[
        "local",
        pytest.param("s3", marks=[pytest.mark.s3, pytest.mark.test_all]),
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


def test_pending_epochs_of_a_deleted_checkpoint_are_found(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Said with the log, as the new query starts; logs of other checkpoints are not read."""
    other = place.world(child_url(place.location.logs.rpartition("/")[0], "other"))
    other.run().batch([("x", 1)])
    old, new = waiting(place), place.world()
    ((query_id, log, epochs),) = place.found(new)
    assert (query_id, log, epochs) == (old.query_id, old.log_backend.url, (1, 2, 3))
    new.run().batch([("a", 1)])
    assert [item.query_id for item in place.found(new)] == [old.query_id], "not its own"
    with caplog.at_level(logging.WARNING):
        log_abandoned(new.query_id, place.location)
    (text,) = [record.getMessage() for record in caplog.records]
    assert old.query_id in text
    assert f"Epochs 1 to 3 are in {old.log_backend.url}, not flushed" in text


def test_flushed_or_unreadable_logs_stop_no_start(place: Place) -> None:
    """A log that is done, one without a state, one that is torn: none keeps a query from starting."""
    old = place.world()
    old.run().flushed_batches([("a", 1)])
    delete_checkpoint(old)
    new = place.world()
    logs = open_backend(place.location.logs, place.options)
    logs.create("no-state/plans/memory-0.json", b"{}")
    logs.create("torn/state/0000000001.json", b"{")
    logs.create("a-file", b"x")
    assert place.found(new) == []
    log_abandoned(new.query_id, place.location._replace(logs="nowhere://x"))


def test_commands_of_the_error_make_a_stand_in(tmp_path: Path) -> None:
    """As the next test does; the last epoch has a file of Spark's format."""
    text = errors.abandoned_log("file:///my logs/ab-c", (2, 3))
    commands = text.partition("To flush what is there: ")[2].partition(". Only")[0]
    make, adopt, flush = commands.split(" && wal-sink ")
    subprocess.run(["sh", "-c", make], cwd=tmp_path, check=True)
    assert json.loads((tmp_path / "stand-in/metadata").read_bytes()) == {"id": "ab-c"}
    assert (tmp_path / "stand-in/commits/3").read_bytes() == b"v1\n{}"
    assert adopt == "adopt stand-in --wal 'file:///my logs'"
    assert flush == "flush stand-in --wal 'file:///my logs'"


@pytest.mark.parametrize("begun", [False, True])
def test_abandoned_epochs_are_flushed_from_a_stand_in(place: Place, *, begun: bool) -> None:
    """Two files, `adopt`, `flush`; beside the new query."""
    old = waiting(place)
    new = place.world()
    if begun:
        new.run().batch([("z", 1)])
    stand_in = place.world(f"{place.location.checkpoint}-old", old)
    stand_in.checkpoint.create("metadata", json.dumps({"id": old.query_id}).encode())
    stand_in.checkpoint.create("commits/3", b"v1\n{}")
    with pytest.raises(errors.WrongOwner):
        stand_in.flush()
    adopt(stand_in, "adopted")
    stand_in.flush()
    assert stand_in.table() == {"a": 4, "b2": 2, "b3": 3, "b4": 4}
    assert old.log_backend.list("manifests/") == []
    assert place.found(new) == []
