"""Pauses a process at a chosen point of a chosen epoch, so that it can be killed there.

The environment says which points, because tasks, `commit` and the flusher run in different processes: whoever
kills sets `PAUSES` to what `pauses` returns, starts the process, and waits for the marker file. A session
pauses when it is wrapped by `pausing`; `wal_sink.demo.crash` has targets, and Spark's side.
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
"""Environment variable: what `pauses` returns."""

Point = Literal[
    "write", "commit called", "commit returned", "committed", "flushing", "finishing", "finished"
]
"""In the order of an epoch's life: a task has taken half of its rows; before the manifest; between the
manifest and `commits/N`; checkpointed, and nothing sent; half of a slice's rows sent; all rows sent, and the
ledger does not say so; the ledger says so, and the log does not."""


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """Where to pause."""

    point: Point
    table: str
    """As the options name it, or the last part of that: a table's name in a namespace, or a folder's."""
    epoch: int
    marker: str
    """Path of the file that says that the point is reached."""


def pauses(*where: Pause) -> str:
    """Return the value of `PAUSES`."""
    return msgspec.json.encode(where).decode()


def pause_at(point: Point, table: str, epoch: int) -> None:
    """Write the marker and wait to be killed, if `PAUSES` names this point."""
    for pause in msgspec.json.decode(os.environ.get(PAUSES, "[]"), type=list[Pause]):
        named = table == pause.table or table.endswith((f".{pause.table}", f"/{pause.table}"))
        if named and (pause.point, pause.epoch) == (point, epoch):
            _wait_for_death(pause)


def _wait_for_death(pause: Pause) -> NoReturn:
    Path(pause.marker).write_text(f"{pause.point} {pause.epoch}")
    time.sleep(600)
    raise AssertionError("this process was not killed in time")


class _Pauses(Faults):
    """Pauses around operations of a session, in place of a fault.

    :param table: to whose windows the session belongs.
    """

    def __init__(self, table: str) -> None:
        super().__init__()
        self._table = table
        self._first: int | None = None
        """The first epoch of the window that is written."""

    @contextlib.contextmanager
    def around(self, name: str) -> Iterator[None]:
        """Pause before a window is written, before it is finished, and after that.

        And after the first half of a slice's rows: a reader of cells finds them during the pause.
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
    """Return a session of the same kind that pauses at the points of a window of this table."""
    return faulty(session, _Pauses(table))
