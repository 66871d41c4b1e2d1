"""The output of commands: errors, values of rows, and the progress bar."""

from __future__ import annotations

import json
import logging

import msgspec
import pyarrow as pa
import pytest
import typer
from rich.table import Table
from typer.testing import CliRunner

import wal_sink
from wal_sink.admin.quarantine import json_value
from wal_sink.cli.main import app
from wal_sink.cli.terminal import ConsoleHandler, output, progress_bar
from wal_sink.errors import LogUnavailable, OptionError


@pytest.mark.parametrize(
    "text", ["pip install 'wal_sink[s3]'", "[/mnt/log] is odd", "[applied]", "s3:key:9"]
)
def test_markup_of_rich_is_printed_as_text(capsys: pytest.CaptureFixture[str], text: str) -> None:
    """Rich would read brackets as a style, and a name between colons as an emoji."""
    with output(as_json=False) as console:
        console.print(text)
    with pytest.raises(typer.Exit) as ended, output(as_json=False):
        raise OptionError("It broke", text)
    printed = capsys.readouterr()
    assert text in printed.err
    assert text in printed.out
    assert ended.value.exit_code == OptionError.exit_code


def test_control_characters_of_the_log_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    """An escape sequence could hide the text to which an operator agrees."""
    evil, shown = "no \x1b[2J\x1b]0;title\x07\r\x9b5n", r"no \x1b[2J\x1b]0;title\x07\r\x9b5n"
    table = Table("column")
    table.add_row(f"cell {evil}")
    with output(as_json=False) as console:
        console.print(f"one\ntwo {evil}", soft_wrap=True)
        console.print(table)
        record = logging.makeLogRecord({"msg": f"line 1\n\tline 2 {evil}", "levelname": "WARNING"})
        ConsoleHandler(console).handle(record)
    with pytest.raises(typer.Exit), output(as_json=False):
        raise OptionError(f"It broke: {evil}", "Wait")
    printed = capsys.readouterr()
    assert f"one\ntwo {shown}\n" in printed.out
    assert f"cell {shown}" in printed.out
    assert f"It broke: {shown}\n" in printed.err
    assert f"WARNING  line 1\n    line 2 {shown}\n" in printed.out
    for steering in "\x1b\x07\r\x9b":
        assert steering not in printed.out + printed.err


def test_command_reports_a_store_error_as_log_unavailable(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(typer.Exit) as ended, output(as_json=True):
        raise PermissionError("/spare")
    shown = capsys.readouterr()
    assert ended.value.exit_code == LogUnavailable.exit_code
    assert "A store or a file cannot be used: PermissionError('/spare')" in shown.err
    assert json.loads(shown.out)["error"] == "LogUnavailable"


def test_version_is_printed() -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert (shown.exit_code, shown.output) == (0, f"wal-sink {wal_sink.__version__}\n")


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("optoins", "Did you mean 'options'?"),
        ("options kafak", "Did you mean kafka?"),
        ("options kafka --jsno", "--json"),
        ("show /c first", "'EPOCH': Input should be a valid integer"),
        ("show /c --rows 1001", "'--rows': Input should be less than or equal to 1000"),
        ("set-mark /c --to -2", "'--to': Input should be greater than or equal to -1"),
        ("status /c --deep --watch", "--deep does not go with --watch"),
        ("status /c --watch", "Add --json to print into a file or a pipe"),
        ("flush", "The command names no query"),
        ("flush --follow", "The command names no query"),
        ("flush /c --dry-run --follow", "--dry-run does not go with --follow"),
        ("flush /c --metrics-port 0", "--metrics-port goes with --follow"),
        ("flush /c --follow --metrics-host 0.0.0.0", "--metrics-host goes with --metrics-port"),
        ("flush /c --follow --under .", "CHECKPOINT does not go with --under"),
        ("flush --under .", "--under goes with --follow"),
        ("flush --dry-run --under .", "--under goes with --follow"),
        ("flush --follow --under . --wal x", "--wal does not go with --under"),
    ],
)
def test_error_of_a_wrong_argument_helps_to_correct_it(typed: str, text: str) -> None:
    done = CliRunner().invoke(app, typed.split(), env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert text in done.output


@pytest.mark.parametrize(
    ("value", "json"),
    [
        (pa.scalar(None, pa.string()), "null"),
        (pa.scalar("plain"), '"plain"'),
        (pa.scalar(b"\x00\xff"), '"AP8="'),
        (pa.scalar([1, None, 2]), "[1,null,2]"),
        (pa.scalar([("a", 1)], pa.map_(pa.string(), pa.int64())), '[["a",1]]'),
        (pa.scalar({"a": 1}), '{"a":1}'),
        (
            pa.scalar([475_464_427_227_387_904], pa.list_(pa.timestamp("us", tz="UTC"))),
            '["17036-11-13 12:00:27.387904Z"]',
        ),
    ],
)
def test_arrow_value_is_shown_as_json(value: pa.Scalar, json: str) -> None:
    assert msgspec.json.encode(json_value(value)).decode() == json


@pytest.mark.parametrize(("as_json", "shown"), [(False, True), (True, False)])
def test_progress_bar_appears_unless_as_json(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    as_json: bool,
    shown: bool,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar("reading segments", as_json=as_json) as progress:
        progress(1, 2)
    printed = capsys.readouterr()
    assert ("reading segments" in printed.err) is shown
    assert printed.out == ""
