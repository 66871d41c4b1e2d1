"""The flush of a backlog in its own process: `python -m tests.benchmarks.flush BACKLOG`.

It prints the total time of the windows, and the CPU time of the process. The time of a window begins at the
read of the ledger row, so the time to connect is left out; its CPU time is not.
"""

from __future__ import annotations

import os
import sys

import msgspec

from tests.benchmarks import cpu
from tests.benchmarks.backlog import Backlog, Timed, flusher_of
from tests.benchmarks.process import result_of
from tests.benchmarks.run import Taken
from wal_sink.testing.micro_batches import until_idle


def flush(backlog: Backlog) -> Taken:
    """Flush a backlog in its own process."""
    text = msgspec.json.encode(backlog).decode()
    return msgspec.json.decode(result_of("tests.benchmarks.flush", text), type=Taken)


def main(backlog: Backlog) -> Taken:
    """Flush a backlog."""
    timed = Timed()
    flusher = flusher_of(backlog, timed)
    used_s = cpu.of_tree(os.getpid())
    try:
        until_idle(flusher)
    finally:
        flusher.close()
    return Taken(sum(timed.seconds), cpu.of_tree(os.getpid()) - used_s)


if __name__ == "__main__":
    taken = main(msgspec.json.decode(sys.argv[1], type=Backlog))
    sys.stdout.write(msgspec.json.encode(taken).decode())
