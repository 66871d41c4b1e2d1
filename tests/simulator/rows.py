"""The rows that runs compute: each attempt has values of its own, so that a row tells where it came from.

The real `append` encodes them once; later attempts with the same rows write the same bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from tests.simulator.machine import MACHINE
from tests.simulator.process import Host, Process
from tests.simulator.trace import Trace
from tests.simulator.volume import Mount, Volume
from wal_sink.errors import InvalidRow
from wal_sink.model import paths
from wal_sink.model.manifest import Appended, SegmentRef, Task
from wal_sink.model.paths import SegmentName
from wal_sink.publish.append import append, most_inline

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])

SHARED_KEYS = ("shared", "xshared")
"""Keys that many epochs write."""
INVALID, REFUSED = "r", "x"
"""How the keys begin of rows that tasks refuse, and of those that the table may refuse when they come."""


class _Encoded(NamedTuple):
    data: bytes
    ref: SegmentRef


class _Segments(NamedTuple):
    taken: _Encoded | None
    refused: _Encoded | None


_FEW_BYTES = 200
"""Less than any segment has, and more than its beginning."""

_encoded: dict[tuple[str, ...], _Segments] = {}


def rows_of(value: int, count: int, *, refused: bool) -> dict[str, int]:
    """Return the rows of an attempt: keys, all with its value.

    :param refused: some of them break a rule of the target.
    """
    keys = ["shared", f"a{value}", f"b{value}"][:count]
    if refused:
        keys[1:1] = [f"{INVALID}{value}", "xshared", f"{REFUSED}{value}"]
    return dict.fromkeys(keys, value)


def check(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Refuse invalid rows, as a task does by the rules that it knows.

    :raises InvalidRow: there are some.
    """
    bad = pc.starts_with(batch.column("k"), INVALID)
    if pc.any(bad).as_py():
        raise InvalidRow("a row that the target would refuse", "Filter such rows out.", rows=bad)
    return batch


def write(backend: Mount, task: Task, rows: dict[str, int], *, small: bool) -> Appended:
    """Do as a task does that appends rows to the log; no segment without rows.

    Where calls have to be told apart, by the names of their segments, it is the real `append`.

    :param small: the segment is for the manifest, and no file (rule 4).
    """
    if task.call:
        # In the last case the segment becomes a file as it turns out to be too large for the manifest.
        most = most_inline(0) if small and MACHINE.random.random() < 0.5 else _FEW_BYTES
        return _append(backend, rows, task, inline_bytes=most if small else 0)
    encoded = _encoding(rows) if rows else _Segments(None, None)
    return Appended(
        query_id=task.query_id,
        run_id=task.run_id,
        epoch=task.epoch,
        segments=_written(backend, task, encoded.taken, small=small),
        refused=_written(backend, task, encoded.refused, small=False),
    )


def _append(backend: Mount, rows: dict[str, int], task: Task, *, inline_bytes: int = 0) -> Appended:
    batch = pa.RecordBatch.from_pylist([{"k": k, "v": v} for k, v in rows.items()], SCHEMA)
    return append(
        [batch],
        task=task,
        backend=backend,
        check=check,
        compression="none",
        on_invalid_row="quarantine",
        inline_bytes=inline_bytes,
    )


def _written(
    backend: Mount, task: Task, encoded: _Encoded | None, *, small: bool
) -> tuple[SegmentRef, ...]:
    if encoded is None:
        return ()
    name = paths.SEGMENT.path(_name(task))
    found = replace(encoded.ref, path=name)
    if small:
        return (replace(found, data=encoded.data),)
    with backend.open_output(name) as output:
        output.write(encoded.data)
    return (found,)


def _name(task: Task) -> SegmentName:
    nonce = f"{task.call}{MACHINE.random.getrandbits(128):032x}"[:32]
    return SegmentName(task.epoch, task.partition, task.task_attempt, task.run_id, nonce)


def _encoding(rows: dict[str, int]) -> _Segments:
    name = (*rows, str(next(iter(rows.values()))))
    if name not in _encoded:
        scratch = Volume("simulated://scratch", lambda _path, _data: None, lambda _path: None)
        known = dict(MACHINE.processes)
        process = Process("encoder", Host("scratch"), Trace(), lambda _what: None)
        MACHINE.processes = known
        task = Task(query_id="q", run_id="r", epoch=0, partition=0, task_attempt=0)
        random, MACHINE.random = MACHINE.random, type(MACHINE.random)(0)
        true_us = MACHINE.true_us
        try:
            done = _append(Mount(scratch, process), rows, task)
        finally:
            MACHINE.random, MACHINE.true_us = random, true_us
        found = [
            _Encoded(scratch.get(ref.path), ref) if ref is not None else None
            for ref in (next(iter(done.segments), None), next(iter(done.refused), None))
        ]
        _encoded[name] = _Segments(*found)
    return _encoded[name]


def refused_in(data: bytes) -> dict[str, int]:
    """Return the rows of an entry of the quarantine, by key."""
    rows = pa.ipc.open_file(pa.BufferReader(data)).read_all().column("row").to_pylist()
    return {row["k"]: row["v"] for row in rows}
