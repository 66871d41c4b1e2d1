"""Options and commands that no longer exist: each is refused with its way out."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from wal_sink import unknown_names
from wal_sink.admin.query import find_query
from wal_sink.cli.main import app
from wal_sink.configuration import configure
from wal_sink.errors import CheckpointNotVisible, OptionError
from wal_sink.publish.preflight import preflight

ONE = {
    "checkpointLocation": "/data/checkpoint",
    "cassandra.contactPoints": "127.0.0.1",
    "keyspace": "shop",
    "table": "orders",
}
SEVERAL = {
    "checkpointLocation": "/data/checkpoint",
    "targets": "orders",
    "orders.target": "cassandra",
    **{f"orders.{name}": value for name, value in ONE.items() if name != "checkpointLocation"},
}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments])


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the table of options, with a row of each form."""
    for row, instead in {"cassandra.gone": "Do A.", "<name>.gone": "Do B."}.items():
        monkeypatch.setitem(unknown_names.OPTIONS, row, instead)
    return unknown_names.OPTIONS


def test_removed_option_is_refused_with_its_remedy(rows: dict[str, str]) -> None:
    """The query has a single target, or several; the name is in any case."""
    for row, instead in rows.items():
        own = row.replace("<name>", "orders")
        for options, written in ((ONE, own), (SEVERAL, f"orders.{own.removeprefix('orders.')}")):
            if options is ONE and row.startswith("<name>."):
                continue
            with pytest.raises(OptionError) as caught:
                configure({**options, written.upper(): "x"})
            assert "no longer exists" in caught.value.what, row
            assert instead in caught.value.remedy, row
            assert caught.value.exit_code == 2


@pytest.mark.parametrize("options", [ONE, SEVERAL])
def test_option_below_a_removed_one_is_refused(
    rows: dict[str, str], options: dict[str, str]
) -> None:
    """A query with several targets needs no prefix. An option with the same first letters is unknown."""
    with pytest.raises(OptionError, match=r"cassandra\.gone\.price no longer exists") as caught:
        preflight({**options, "cassandra.gone.price": "x"}, pa.schema([("id", pa.int64())]))
    assert caught.value.remedy == rows["cassandra.gone"]
    with pytest.raises(OptionError, match=r"ption cassandra\.goneby") as caught:
        configure({**options, "cassandra.goneby": "x"})
    assert "no longer exists" not in str(caught.value)


def test_command_refuses_a_removed_option(tmp_path: Path, rows: dict[str, str]) -> None:
    """It does so before it searches the query. `wal.onFull` exists, `<name>.onFull` of a target does not."""
    shown = run("status", str(tmp_path), "--option", "cassandra.gone=x")
    assert shown.exit_code == 2
    assert rows["cassandra.gone"] in shown.stderr
    with pytest.raises(CheckpointNotVisible):
        find_query(str(tmp_path), options={"wal.onFull": "fail"})


@pytest.mark.parametrize("row", unknown_names.COMMANDS)
def test_removed_command_is_refused_with_its_remedy(row: str) -> None:
    """The other arguments do not matter."""
    command, _, flag = row.partition(" ")
    shown = run(command, "/data/checkpoint", *([flag] if flag else []))
    assert shown.exit_code == 2
    assert shown.stdout == ""
    what, remedy = shown.stderr.splitlines()
    assert f"`wal-sink {row}` no longer exists." in what
    assert remedy == f"  What to do: {unknown_names.COMMANDS[row]}"


def test_removed_flag_with_a_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the flag the command runs. With `--json` the error is a document."""
    monkeypatch.setitem(unknown_names.COMMANDS, "options --gone", "Do D.")
    shown = run("options", "--gone=1", "--json")
    assert shown.exit_code == 2
    assert json.loads(shown.stdout)["error"] == "OptionError"
    assert run("options", "delta").exit_code == 0
