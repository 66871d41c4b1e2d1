"""The rows that runs compute: each attempt has values of its own, so that a row tells where it came from.

The real `append` encodes them once; later attempts with the same rows write the same bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from tests.simulator.machine import MACHINE
from tests.simulator.process import Host, Process
from tests.simulator.trace import Trace
from tests.simulator.volume import Mount, Volume
from wal_sink.model import paths
from wal_sink.model.manifest import Appended, SegmentRef, Task
from wal_sink.model.paths import SegmentName
from wal_sink.publish.append import append

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])

SHARED = "shared"
"""A key that nearly every epoch writes."""


class _Encoded(NamedTuple):
    data: bytes
    ref: SegmentRef


_encoded: dict[tuple[str, ...], _Encoded] = {}


def rows_of(value: int, count: int) -> dict[str, int]:
    """Return the rows of an attempt: keys, all with its value."""
    return dict.fromkeys((SHARED, f"a{value}", f"b{value}")[:count], value)


def write(backend: Mount, task: Task, rows: dict[str, int], *, small: bool) -> Appended:
    """Do as a task does that appends rows to the log; no segment without rows.

    :param small: the segment is for the manifest, and no file (rule 4).
    """
    segments: tuple[SegmentRef, ...] = ()
    if rows:
        encoded = _encoding(rows)
        name = paths.SEGMENT.path(_name(task))
        found = replace(encoded.ref, path=name)
        if small:
            found = replace(found, data=encoded.data)
        else:
            with backend.open_output(name) as output:
                output.write(encoded.data)
        segments = (found,)
    return Appended(query_id=task.query_id, run_id=task.run_id, epoch=task.epoch, segments=segments)


def _name(task: Task) -> SegmentName:
    nonce = f"{MACHINE.random.getrandbits(64):032x}"
    return SegmentName(task.epoch, task.partition, task.attempt, task.run_id, nonce)


def _encoding(rows: dict[str, int]) -> _Encoded:
    name = (*rows, str(next(iter(rows.values()))))
    if name not in _encoded:
        scratch = Volume("simulated://scratch", lambda _path, _data: None, lambda _path: None)
        known = dict(MACHINE.processes)
        process = Process("encoder", Host("scratch"), Trace(), lambda _what: None)
        MACHINE.processes = known
        batch = pa.RecordBatch.from_pylist([{"k": k, "v": v} for k, v in rows.items()], SCHEMA)
        task = Task(query_id="q", run_id="r", epoch=0, partition=0, attempt=0)
        random, MACHINE.random = MACHINE.random, type(MACHINE.random)(0)
        true_us = MACHINE.true_us
        try:
            done = append(
                [batch],
                task=task,
                backend=Mount(scratch, process),
                check=lambda batch: batch,
                compression="none",
            )
        finally:
            MACHINE.random, MACHINE.true_us = random, true_us
        (ref,) = done.segments
        _encoded[name] = _Encoded(scratch.get(ref.path), ref)
    return _encoded[name]
