"""Commands as a shell runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

WAL_SINK = Path(sys.executable).with_name("wal-sink")


FOLLOWS = "Flushing, until Ctrl-C or SIGTERM\n"
"""What `flush --follow` says first: from then on a signal ends it in order, before that at once."""


class Done(NamedTuple):
    """What a command returned and printed."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one document on standard output."""
        assert self.out, self.err
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found


def run(folder: Path, *arguments: object, answer: str | None = None) -> Done:
    """Run `wal-sink …` in a folder; without an answer, stdin is closed."""
    done = subprocess.run(
        [WAL_SINK, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        **({"input": answer} if answer is not None else {"stdin": subprocess.DEVNULL}),
    )
    return Done(done.returncode, done.stdout, done.stderr)


def start(folder: Path, *arguments: object) -> subprocess.Popen[str]:
    """Start a command that goes on until a signal ends it."""
    return subprocess.Popen(
        [WAL_SINK, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        cwd=folder,
    )
