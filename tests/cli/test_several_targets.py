"""Commands about a query with several targets: two tables of one SQLite file."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from sqlite_target import SqliteOptions, SqliteTarget
from tests.protocol.engine import World
from wal_sink.admin.query import find_query
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.cli.main import app
from wal_sink.errors import OptionError
from wal_sink.progress.status import read_status
from wal_sink.targets.base import Target


class TwoTables(World):
    """Its targets are `left` and `right`."""

    folder: Path
    place = "checkpoint"

    @property
    def targets(self) -> dict[str, Target]:
        """Both tables."""
        database = str(self.folder / "shop.db")
        return {
            name: SqliteTarget(SqliteOptions(path=database, table=name))
            for name in ("left", "right")
        }

    def keys(self, table: str) -> list[str]:
        """Return what a table has."""
        connection = sqlite3.connect(self.folder / "shop.db")
        try:
            return [k for (k,) in connection.execute(f"SELECT k FROM {table} ORDER BY k")]
        finally:
            connection.close()

    def command(self, verb: str, *arguments: str) -> Result:
        """Run `wal-sink <verb> CHECKPOINT … --json` in this process."""
        given = {"targets": ",".join(self.targets)}
        for name in self.targets:
            given |= {
                f"{name}.target": "sqlite_target:SqliteTarget",
                f"{name}.sqlite.path": str(self.folder / "shop.db"),
                f"{name}.table": name,
            }
        options = [text for pair in given.items() for text in ("--option", "=".join(pair))]
        checkpoint = str(self.folder / self.place)
        return CliRunner().invoke(app, [verb, checkpoint, *arguments, *options, "--json"])

    def told(self, verb: str, *arguments: str) -> dict[str, Any]:
        """Run it, and return its document."""
        done = self.command(verb, *arguments)
        assert done.exit_code == 0, done.output
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@pytest.fixture
def two(world: World, tmp_path: Path) -> TwoTables:
    """Return a query with two epochs, none of them flushed."""
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        for name in ("left", "right"):
            connection.execute(f"CREATE TABLE {name} (k TEXT, v INTEGER)")
    connection.close()
    made = TwoTables(world.checkpoint, world.log_backend)
    made.query_id, made.folder, made.clock = world.query_id, tmp_path, world.clock
    run = made.run()
    run.batch([("a", 1)])
    run.batch([("b", 2)])
    return made


NOBODY = "Nobody flushes: start the query again"


def shown(two: TwoTables, target: str = "") -> str:
    """Return what `status` says to people."""
    return repr(read_status(Checkpoint(two.checkpoint), two.log.of(target)))


def test_commands_are_about_each_target_or_about_one(two: TwoTables) -> None:
    """`flush` sends to both at once, unless one is named."""
    assert two.told("flush", "--target", "left")["epochs"] == 2
    assert (two.keys("left"), two.keys("right")) == (["a", "b"], [])
    found = two.told("status")
    assert (found["flushed"], found["pending_epochs"], found["target"]) == (-1, 2, "")
    assert [(each["target"], each["flushed"]) for each in found["targets"]] == [
        ("left", 1),
        ("right", -1),
    ]
    assert two.told("status", "--target", "left")["pending_epochs"] == 0
    assert NOBODY in shown(two)
    assert NOBODY in shown(two, "right")
    assert NOBODY not in shown(two, "left")
    assert two.told("inspect")["flushed"] == -1
    assert two.told("inspect", "--target", "left")["flushed"] == 1
    seen = two.told("verify")["targets"]
    assert [(each["target"], each["ledger"], each["findings"]) for each in seen] == [
        ("left", 1, []),
        ("right", None, []),
    ]
    done = two.told("flush")["targets"]
    assert [(each["target"], each["epochs"]) for each in done] == [("left", 0), ("right", 2)]
    assert two.keys("right") == ["a", "b"]
    assert two.told("status")["safe_to_delete"]
    said = shown(two)
    assert (said.count("its flusher has ended"), "as it seems" in said) == (2, False)
    assert NOBODY not in said


def test_a_change_names_its_target(two: TwoTables) -> None:
    """Without a name it says which there are."""
    refused = two.command("rewind", "--to", "-1", "--yes")
    assert (refused.exit_code, json.loads(refused.stdout)["error"]) == (2, "OptionError")
    assert "has the targets left, right" in json.loads(refused.stdout)["what"]
    unknown = two.command("status", "--target", "middle")
    assert "There is no target middle" in json.loads(unknown.stdout)["what"]


def test_options_of_several_targets_for_a_query_with_one(world: World, tmp_path: Path) -> None:
    """The log has one target, without a name: the operator's option does not fit."""
    world.run().batch([("a", 1)])
    options = ("targets=left", "left.target=sqlite_target:SqliteTarget", "left.sqlite.path=x.db")
    given = [text for pair in (*options, "left.table=t") for text in ("--option", pair)]
    arguments = ["inspect", str(tmp_path / "checkpoint"), "--ledger", *given, "--json"]
    refused = CliRunner().invoke(app, arguments)
    found = json.loads(refused.stdout)
    assert (refused.exit_code, found["error"]) == (2, "OptionError"), refused.output
    assert "without option targets" in found["remedy"], found


def test_the_only_target_of_a_query_has_no_name(world: World, tmp_path: Path) -> None:
    """A command cannot be about one of several."""
    world.run().batch([("a", 1)])
    query = find_query(str(tmp_path / "checkpoint"), None, {})
    with pytest.raises(OptionError, match="has one target, without a name"):
        query.of("left")


def test_a_query_that_was_moved_is_adopted_for_each_target(two: TwoTables) -> None:
    """Each ledger row names log and checkpoint; the flush to a target stops until its row is adopted."""
    two.told("flush")
    (two.folder / two.place).rename(two.folder / "moved")
    two.place = "moved"
    assert two.command("flush").exit_code == 5
    two.told("adopt", "--target", "left", "--yes")
    assert two.told("flush", "--target", "left")["pending_epochs"] == 0
    assert two.command("flush", "--target", "right").exit_code == 5
    two.told("adopt", "--target", "right", "--yes")
    two.told("flush")
    again = two.command("adopt", "--target", "right", "--yes")
    assert "There is nothing to adopt" in json.loads(again.stdout)["remedy"]
