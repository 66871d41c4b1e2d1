"""Measures the time from `commits/N` until all rows of epoch N are visible, in its own process.

`python -m tests.benchmarks.prober PROBE` prints the seconds of each epoch as a JSON list. To disturb less,
it polls one row, the last of the epoch, and counts the other rows when that row is visible.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tests.benchmarks.process import ROOT
from tests.benchmarks.sizes import SMALL
from tests.benchmarks.small_epochs import DEVICES, devices
from tests.benchmarks.table import Table

_COMMIT_POLL_S, _ROW_POLL_S = 0.002, 0.004
_PATIENCE_S = 600


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """The epochs to measure."""

    host: str
    port: int
    table: str
    checkpoint: str
    first: int
    last: int
    """The last epoch, which is included."""


class Prober:
    """The process, which starts to measure when it is constructed."""

    def __init__(self, table: Table, checkpoint: Path, first: int, last: int) -> None:
        probe = Probe(
            host=table.server.host,
            port=table.server.port,
            table=table.where,
            checkpoint=str(checkpoint),
            first=first,
            last=last,
        )
        text = msgspec.json.encode(probe).decode()
        command = [sys.executable, "-m", "tests.benchmarks.prober", text]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def seconds(self) -> list[float]:
        """Wait until the process ends; return the seconds of each epoch."""
        printed, _ = self._process.communicate(timeout=2 * _PATIENCE_S)
        if self._process.returncode:
            raise RuntimeError("the reader failed; see above")
        return msgspec.json.decode(printed, type=list[float])

    def kill(self) -> None:
        """Kill the process if it still runs."""
        self._process.kill()
        self._process.wait()


def main(probe: Probe) -> list[float]:
    """Measure each epoch."""
    from cassandra.cluster import Cluster  # noqa: PLC0415 - the parent needs no driver

    session = Cluster([probe.host], probe.port, protocol_version=5).connect()
    select = session.prepare(f"SELECT id FROM {probe.table} WHERE device = ? AND id = ?")
    count = session.prepare(f"SELECT count(*) FROM {probe.table} WHERE device IN ?")
    seconds = []
    for epoch in range(probe.first, probe.last + 1):
        commit = Path(probe.checkpoint, "commits", str(epoch))
        _wait(commit.exists, _COMMIT_POLL_S)
        renamed_s = commit.stat().st_ctime  # the time of the rename; Spark wrote the content before
        last = (devices(epoch)[DEVICES - 1], (epoch + 1) * SMALL - 1)
        _wait(partial(_is_there, session, select, last, last[1]), _ROW_POLL_S)
        _wait(partial(_is_there, session, count, [devices(epoch)], SMALL), _ROW_POLL_S)
        seconds.append(time.time() - renamed_s)
    session.cluster.shutdown()
    return seconds


def _is_there(session: Any, statement: Any, parameters: Sequence[object], wanted: int) -> bool:
    row = session.execute(statement, parameters).one()
    return row is not None and bool(row[0] == wanted)


def _wait(until: Callable[[], bool], poll_s: float) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not until():
        if time.monotonic() > deadline:
            raise RuntimeError(f"nothing to see for {_PATIENCE_S} s")
        time.sleep(poll_s)


if __name__ == "__main__":
    result = main(msgspec.json.decode(sys.argv[1], type=Probe))
    sys.stdout.write(msgspec.json.encode(result).decode())
