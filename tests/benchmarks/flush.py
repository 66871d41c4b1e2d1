"""The flush alone, in a fresh process: `python -m tests.benchmarks.flush BACKLOG`.

It ends when the flusher rests, and prints how long that took and the CPU time that it used. The clock runs
from the first epoch's `begin` to the last epoch's record, so connecting is not in it; its CPU is. Of several
targets it is the first whose flusher is waited for; those of the others go on beside it, as in a query.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

import msgspec

from tests.benchmarks import cpu
from tests.benchmarks.backlog import Backlog
from tests.benchmarks.process import result_of
from tests.benchmarks.run import Taken
from wal_sink.configuration import configure
from wal_sink.flush.flusher import Flusher, Pipeline
from wal_sink.flush.loop import FlushLoop
from wal_sink.flush.report import Reporter
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
    first, *others = (
        Pipeline(backlog.query_id, log.of(each.name), checkpoint, each.target)
        for each in configuration.destinations
    )
    flusher = Flusher(first)
    used_s = cpu.of_tree(os.getpid())
    with beside(others):
        try:
            while not isinstance(flusher.run_once(), Idle):
                pass
        finally:
            flusher.close()
        records = first.log.flushed_since(-1)
        cpu_s = cpu.of_tree(os.getpid()) - used_s
    us = records[-1].recorded_us - min(record.begun_us for record in records)
    return Taken(us / 1e6, cpu_s)


@contextlib.contextmanager
def beside(pipelines: list[Pipeline]) -> Iterator[None]:
    """Flush other targets on threads of their own."""
    loops = [FlushLoop(Flusher(each, Reporter(each.log))) for each in pipelines]
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.stop()
        for loop in loops:
            loop.join(10)


if __name__ == "__main__":
    taken = main(msgspec.json.decode(sys.argv[1], type=Backlog))
    sys.stdout.write(msgspec.json.encode(taken).decode())
