"""The flush alone, in a fresh process: `python -m tests.benchmarks.flush BACKLOG`.

It ends when the flusher rests, and prints how long that took and the CPU time that it used. The clock runs
from the first epoch's `begin` to the last epoch's record, so connecting is not in it; its CPU is.
"""

from __future__ import annotations

import os
import sys

import msgspec

from tests.benchmarks import cpu
from tests.benchmarks.backlog import Backlog
from tests.benchmarks.process import result_of
from tests.benchmarks.run import Taken
from wal_sink.configuration import configure
from wal_sink.flush.flusher import Flusher, Pipeline
from wal_sink.protocol.next_step import Idle


def flush(backlog: Backlog) -> Taken:
    """Flush a backlog in a process of its own."""
    text = msgspec.json.encode(backlog).decode()
    return msgspec.json.decode(result_of("tests.benchmarks.flush", text), type=Taken)


def main(backlog: Backlog) -> Taken:
    """Flush."""
    configuration = configure(backlog.options)
    checkpoint = configuration.location.open_checkpoint()
    log = configuration.location.open_log(backlog.query_id)
    flusher = Flusher(Pipeline(backlog.query_id, log, checkpoint, configuration.target))
    used_s = cpu.of_tree(os.getpid())
    try:
        while not isinstance(flusher.run_once(), Idle):
            pass
    finally:
        flusher.close()
    records = log.flushed_since(-1)
    cpu_s = cpu.of_tree(os.getpid()) - used_s
    us = records[-1].recorded_us - min(record.begun_us for record in records)
    return Taken(us / 1e6, cpu_s)


if __name__ == "__main__":
    taken = main(msgspec.json.decode(sys.argv[1], type=Backlog))
    sys.stdout.write(msgspec.json.encode(taken).decode())
