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


def test_option_below_a_removed_one_is_refused(rows: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=r"cassandra\.gone\.price no longer exists") as caught:
        preflight({**ONE, "cassandra.gone.price": "x"}, pa.schema([("id", pa.int64())]))
    assert caught.value.remedy == rows["cassandra.gone"]


def test_option_that_resembles_a_removed_one_is_unknown(rows: dict[str, str]) -> None:
    """The name only begins with the same letters."""
    assert rows
    with pytest.raises(OptionError, match=r"Unknown option cassandra\.goneby"):
        configure({**ONE, "cassandra.goneby": "x"})


def test_removed_option_of_several_targets_needs_no_prefix(rows: dict[str, str]) -> None:
    with pytest.raises(OptionError) as caught:
        configure({**SEVERAL, "cassandra.gone": "x"})
    assert caught.value.remedy == rows["cassandra.gone"]


def test_command_refuses_a_removed_option(tmp_path: Path, rows: dict[str, str]) -> None:
    """The command refuses the option before it searches the query."""
    with pytest.raises(OptionError) as caught:
        find_query(str(tmp_path), options={"cassandra.gone": "x"})
    assert caught.value.remedy == rows["cassandra.gone"]
    shown = run("status", str(tmp_path), "--option", "cassandra.gone=x")
    assert shown.exit_code == 2
    assert rows["cassandra.gone"] in shown.stderr


def test_command_accepts_option_that_resembles_a_removed_one(tmp_path: Path) -> None:
    """`wal.onFull` exists, although `<name>.onFull` of a target does not."""
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


def test_remedies_of_removed_names_are_whole_sentences() -> None:
    for row, instead in (unknown_names.OPTIONS | unknown_names.COMMANDS).items():
        assert instead.strip() == instead, row
        assert "\n" not in instead, row
        assert instead.endswith((".", "`", ")")), row
