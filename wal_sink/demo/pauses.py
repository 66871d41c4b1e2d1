"""Pauses a process at a chosen point of an epoch, so that it can be killed there.

Tasks, `commit()` and flusher run in different processes, so the points are in an environment variable. The
process that kills sets `PAUSES` to the result of `pauses`, starts the application, and waits for the marker
file. The session of a target pauses if it is wrapped by `pausing`. `wal_sink.demo.crash` has targets and a
data source that pause.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NoReturn

import msgspec

from wal_sink.targets.base import Session
from wal_sink.testing.faults import Faults, faulty

PAUSES = "WAL_SINK_TESTING_PAUSES"
"""The environment variable with the points, made by `pauses`."""

Point = Literal[
    "write", "commit called", "commit returned", "committed", "flushing", "finishing", "finished"
]
"""A point in the processing of an epoch, in order.

- `write`: a task has half of its rows.
- `commit called`: the manifest does not exist yet.
- `commit returned`: the manifest exists, and `commits/N` does not.
- `committed`: the epoch is checkpointed, and none of its rows is sent.
- `flushing`: half of the rows of a slice are sent.
- `finishing`: all rows are sent, and the ledger row lacks the epoch.
- `finished`: the ledger row has the epoch, and the state of the log does not.
"""


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """A point, table and epoch at which a process pauses."""

    point: Point
    table: str
    """The table, topic or path in the options; or its last part, without namespace or parent folder."""
    epoch: int
    marker: str
    """Path of the file that the process writes before it pauses."""


def pauses(*points: Pause) -> str:
    """Return the value of `PAUSES`."""
    return msgspec.json.encode(points).decode()


def pause_at(point: Point, table: str, epoch: int) -> None:
    """Write the marker and wait for a SIGKILL, if `PAUSES` has this point."""
    for pause in msgspec.json.decode(os.environ.get(PAUSES, "[]"), type=list[Pause]):
        named = table == pause.table or table.endswith((f".{pause.table}", f"/{pause.table}"))
        if named and (pause.point, pause.epoch) == (point, epoch):
            _wait_for_kill(pause)


def _wait_for_kill(pause: Pause) -> NoReturn:
    Path(pause.marker).write_text(f"{pause.point} {pause.epoch}")
    time.sleep(600)
    raise AssertionError("this process was not killed in time")


class _Pauses(Faults):
    """Pauses instead of faults around the operations of a session.

    :param table: the table of the session.
    """

    def __init__(self, table: str) -> None:
        super().__init__()
        self._table = table
        self._first: int | None = None
        """The first epoch of the present window."""

    @contextlib.contextmanager
    def around(self, name: str) -> Iterator[None]:
        """Pause before a window, after the first half of a slice, and before and after the end of a window.

        At the pause after half of a slice, readers of Cassandra see these rows.
        """
        verb, _, rest = name.partition(" ")
        epoch = int(rest.split()[0]) if verb in ("write", "finish") else -1
        if verb == "write" and self._first is None:
            self._first = epoch
            pause_at("committed", self._table, epoch)
        elif verb == "finish":
            epoch, self._first = epoch if self._first is None else self._first, None
            pause_at("finishing", self._table, epoch)
        yield
        if verb == "write":
            pause_at("flushing", self._table, epoch)
        elif verb == "finish":
            pause_at("finished", self._table, epoch)


def pausing(session: Session, table: str) -> Session:
    """Return a wrapper of a session that pauses at the points of a flush to this table."""
    return faulty(session, _Pauses(table))
