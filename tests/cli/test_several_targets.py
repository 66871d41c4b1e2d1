"""Commands about a query with two targets: two tables of a SQLite file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.job import Job, batches, rows_of
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.progress.status import read_status


@pytest.fixture
def two(tmp_path: Path) -> Job:
    """Return a query into `left` and `right` with two pending epochs."""
    made = Job(tmp_path, "left", "right")
    batches(made, 0, 1)
    return made


NOBODY = "Nothing flushes: start the query again"


def shown(two: Job, target: str = "") -> str:
    """Return the text of `status`."""
    return repr(read_status(Checkpoint(two.checkpoint), two.log_backend, target))


def test_commands_apply_to_all_targets_or_one(two: Job) -> None:
    assert two.command("flush", "--target", "left").document["epochs"] == 2
    assert (two.rows("left"), two.rows("right")) == (rows_of(0, 1), [])
    document = two.command("status").document
    assert (document["flushed"], document["pending_epochs"], document["target"]) == (-1, 2, "")
    flushed = [(target["target"], target["flushed"]) for target in document["targets"]]
    assert flushed == [("left", 1), ("right", -1)]
    assert two.command("status", "--target", "left").document["pending_epochs"] == 0
    assert NOBODY in shown(two)
    assert NOBODY in shown(two, "right")
    assert NOBODY not in shown(two, "left")
    assert two.command("show").document["flushed"] == -1
    assert two.command("show", "--target", "left").document["flushed"] == 1
    deep = two.command("status", "--deep")
    assert (deep.code, deep.document["ledger"]) == (0, {"left": 1, "right": None})
    done = two.command("flush").document["targets"]
    assert [(target["target"], target["epochs"]) for target in done] == [("left", 0), ("right", 2)]
    assert two.rows("right") == rows_of(0, 1)
    assert two.command("status").document["safe_to_delete"]
    assert shown(two).count("its flusher has ended") == 2
    assert NOBODY not in shown(two)


def test_set_mark_requires_the_name_of_a_target(two: Job) -> None:
    two.command("flush")
    refused = two.command("set-mark", "--to", 0, "--yes")
    assert (refused.code, refused.document["error"]) == (2, "OptionError")
    assert "has the targets left, right" in refused.document["what"]
    unknown = two.command("status", "--target", "middle")
    assert "has no target middle" in unknown.document["what"]
    two.execute("DELETE FROM right WHERE v > 0")
    assert two.command("set-mark", "--to", 0, "--target", "right", "--yes").code == 0
    two.command("flush")
    assert (two.rows("left"), two.rows("right")) == (rows_of(0, 1), rows_of(0, 1))


def test_options_of_another_query_are_refused(two: Job) -> None:
    refused = two.command("flush", "--option", "targets=left")
    assert (refused.code, refused.document["error"]) == (2, "OptionError")


def test_moved_query_is_adopted_for_each_target(two: Job) -> None:
    two.command("flush")
    two.move("moved")
    assert two.command("flush").code == 5
    assert two.command("adopt", "--yes").code == 0
    batches(two, 2)
    assert two.command("flush").code == 0
    assert (two.rows("left"), two.rows("right")) == (rows_of(0, 1, 2), rows_of(0, 1, 2))


def test_epoch_is_given_up_for_one_target(two: Job) -> None:
    two.execute(
        "CREATE TRIGGER no BEFORE INSERT ON right WHEN new.v = 0 BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    assert two.command("flush").code == 3
    assert two.rows("left") == rows_of(0, 1)
    done = two.command("give-up", "--epoch", 0, "--yes").document
    assert done["targets"] == ["right"]
    assert two.command("flush").code == 0
    assert (two.rows("left"), two.rows("right")) == (rows_of(0, 1), rows_of(1))


def test_target_that_is_down_can_be_given_up(two: Job) -> None:
    """The query may start without the target."""
    two.execute("DROP TABLE right")
    assert two.command("flush").code == 3
    assert two.command("status").document["pending_epochs"] == 2
    done = two.command("give-up", "--target", "right", "--yes")
    assert (done.code, done.document["epoch"]) == (0, None)
    document = two.command("status").document
    assert (document["given_up"], document["pending_epochs"], document["safe_to_delete"]) == (
        ["right"],
        0,
        True,
    )
    assert two.command("flush").document["target"] == "left"
    assert two.refused("give-up", "--epoch", 0, "--target", "right", "--yes") == (2, "OptionError")
    assert two.refused("set-mark", "--to", 0, "--target", "right", "--yes") == (2, "OptionError")
    two.names = ("left",)
    batches(two, 2)
    assert two.command("flush").code == 0
    assert two.rows("left") == rows_of(0, 1, 2)
