"""Runs commands as processes.

`run` forks a process in which the commands are loaded, since to load them takes most of the time of a short
command. `start` runs the installed script.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

WAL_SINK = Path(sys.executable).with_name("wal-sink")

FOLLOWS = "Flushing, until Ctrl-C or SIGTERM\n"
"""The first line of `flush --follow`. After this line, a signal ends the command in order."""

_LOADED = multiprocessing.get_context("forkserver")


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
    with tempfile.TemporaryDirectory() as name:
        files = Path(name)
        (files / "0").write_text(answer or "")
        about = (folder, [*map(str, arguments)], files, dict(os.environ))
        command = _LOADED.Process(target=_command, args=about)
        command.start()
        command.join()
        code = command.exitcode
        command.close()
        assert code is not None
        return Done(code, (files / "1").read_text(), (files / "2").read_text())


def _command(
    folder: Path, arguments: Sequence[str], files: Path, environment: Mapping[str, str]
) -> None:
    """Run the command in this process, with files in place of its standard streams."""
    for number, mode in enumerate("rww"):
        with (files / str(number)).open(mode) as file:
            os.dup2(file.fileno(), number)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = [str(WAL_SINK), *arguments]

    from wal_sink.cli.main import app  # noqa: PLC0415 - the tests' own process needs no commands

    app()


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
