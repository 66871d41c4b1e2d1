"""Runs commands: `run` in the process of the test, `start` as a process of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from typer.testing import CliRunner

from wal_sink.cli.main import app

WAL_SINK = Path(sys.executable).with_name("wal-sink")

FOLLOWS = "Flushing, until Ctrl-C or SIGTERM\n"
"""The first line of `flush --follow`. After this line, a signal ends the command in order."""


class Done(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The JSON document on standard output."""
        assert self.out, self.err
        document = json.loads(self.out)
        assert isinstance(document, dict)
        return document


def run(folder: Path, *arguments: object, answer: str | None = None) -> Done:
    """Run `wal-sink …` in a folder, to its end.

    :param answer: the text on standard input; None for an empty input.
    """
    with contextlib.chdir(folder):
        done = CliRunner().invoke(app, [*map(str, arguments)], input=answer)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return Done(done.exit_code, done.stdout, done.stderr)


def start(folder: Path, *arguments: object) -> subprocess.Popen[str]:
    """Start a command that runs until a signal."""
    return subprocess.Popen(
        [WAL_SINK, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        cwd=folder,
    )
