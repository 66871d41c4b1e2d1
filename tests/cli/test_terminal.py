"""What a command prints: errors, values of rows, and a progress bar."""

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
from wal_sink.cli.terminal import SafeFormatter, bar, output
from wal_sink.errors import LogUnavailable, OptionError


@pytest.mark.parametrize("text", ["pip install 'wal_sink[s3]'", "[/mnt/log] is odd", "[applied]"])
def test_brackets_of_an_error_are_no_markup(capsys: pytest.CaptureFixture[str], text: str) -> None:
    """Of a remedy, and of what is printed: nothing of it is taken for a style, or for a broken one."""
    with output(as_json=False) as console:
        console.print(text)
    with pytest.raises(typer.Exit) as ended, output(as_json=False):
        raise OptionError("It broke", text)
    printed = capsys.readouterr()
    assert text in printed.err
    assert text in printed.out
    assert ended.value.exit_code == OptionError.exit_code


def test_texts_of_a_log_do_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Of an error, of what is printed or logged, in a cell: an escape could hide what is agreed to."""
    evil, shown = "no \x1b[2J\x1b]0;title\x07\r\x9b5n", r"no \x1b[2J\x1b]0;title\x07\r\x9b5n"
    table = Table("column")
    table.add_row(f"cell {evil}")
    with output(as_json=False) as console:
        console.print(f"one\ntwo {evil}", soft_wrap=True)
        console.print(table)
    with pytest.raises(typer.Exit), output(as_json=False):
        raise OptionError(f"It broke: {evil}", "Wait")
    logged = SafeFormatter().format(logging.makeLogRecord({"msg": f"line 1\n\tline 2 {evil}"}))
    printed = capsys.readouterr()
    assert f"one\ntwo {shown}\n" in printed.out
    assert f"cell {shown}" in printed.out
    assert f"It broke: {shown}\n" in printed.err
    assert logged == f"line 1\n    line 2 {shown}"
    for steering in "\x1b\x07\r\x9b":
        assert steering not in printed.out + printed.err + logged


def test_store_error_is_an_error_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Also of a place that is neither log nor checkpoint, such as a folder to export to."""
    with pytest.raises(typer.Exit) as ended, output(as_json=True):
        raise PermissionError("/spare")
    shown = capsys.readouterr()
    assert ended.value.exit_code == LogUnavailable.exit_code
    assert "A store or a file cannot be used: PermissionError('/spare')" in shown.err
    assert json.loads(shown.out)["error"] == "LogUnavailable"


def test_version_is_told() -> None:
    """Which version a machine has is the first question of every report."""
    shown = CliRunner().invoke(app, ["--version"])
    assert (shown.exit_code, shown.output) == (0, f"wal-sink {wal_sink.__version__}\n")


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("optoins", "Did you mean 'options'?"),
        ("options kafak", "Did you mean kafka?"),
        ("options kafka --jsno", "--json"),
        ("demo --target kafak", "Did you mean kafka?"),
        ("demo --flights 3", "'--flights': Input should be greater than or equal to 240"),
        ("show /c first", "'EPOCH': Input should be a valid integer"),
        ("show /c --rows 1001", "'--rows': Input should be less than or equal to 1000"),
        ("set-mark /c --to -2", "'--to': Input should be greater than or equal to -1"),
    ],
)
def test_wrong_input_gets_a_plain_line(typed: str, text: str) -> None:
    """It says what is wrong with which word, or which word was meant; the exit code is 2."""
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
def test_value_of_any_type_is_shown(value: pa.Scalar, json: str) -> None:
    """Also one that Python has no type for."""
    assert msgspec.json.encode(json_value(value)).decode() == json


@pytest.mark.parametrize(("as_json", "shown"), [(False, True), (True, False)])
def test_progress_bar_appears_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    as_json: bool,
    shown: bool,
) -> None:
    """It appears on a terminal, beside no document."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with bar("reading segments", as_json=as_json) as progress:
        progress(1, 2)
    printed = capsys.readouterr()
    assert ("reading segments" in printed.err) is shown
    assert printed.out == ""
