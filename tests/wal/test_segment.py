"""Segments: a flusher reads to the bit what a task wrote, or refuses the segment before its first row."""

from __future__ import annotations

import contextlib
import datetime as dt
import gc
import math
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_backends import StateBackend, open_backend
from wal_sink.errors import CorruptLog, InvalidRow
from wal_sink.model import paths
from wal_sink.model.codec import digest
from wal_sink.model.manifest import Execution, SegmentRef, Task
from wal_sink.publish.append import append, most_inline
from wal_sink.wal.segment import Compression, SegmentWriter, read_segment

COMPRESSIONS: tuple[Compression, ...] = ("lz4", "zstd", "none")
PATH = "segments/00000000000000000007/000000-0-x.arrow"
MOMENT = dt.datetime(2013, 1, 1, 5, 15, 0, 123_456, tzinfo=dt.UTC)

VALUES: dict[pa.DataType, list[object]] = {
    pa.string(): ["", "a", "köln", "日本", "x" * 10_000, "\0"],
    pa.large_string(): ["a", "b"],
    pa.binary(): [b"", b"\0\xff", b"x" * 10_000],
    pa.binary(16): [uuid.UUID(int=n).bytes for n in (0, 1, 2**128 - 1)],
    pa.bool_(): [True, False],
    pa.int8(): [-128, 0, 127],
    pa.int16(): [-(2**15), 2**15 - 1],
    pa.int32(): [-(2**31), 2**31 - 1],
    pa.int64(): [-(2**63), -1, 2**63 - 1],
    pa.float32(): [0.5, -0.0, math.inf],
    pa.float64(): [0.1, -0.0, -math.inf, 5e-324],
    pa.decimal128(38, 18): [Decimal("12345678901234567890.123456789012345678"), Decimal(-1)],
    pa.date32(): [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)],
    pa.timestamp("us", "UTC"): [MOMENT, dt.datetime(1900, 1, 1, tzinfo=dt.UTC)],
    pa.timestamp("us"): [MOMENT.replace(tzinfo=None)],
    pa.timestamp("ms", "UTC"): [MOMENT.replace(microsecond=123_000)],
    pa.list_(pa.int32()): [[1, None, 3], []],
    pa.map_(pa.string(), pa.int64()): [[("a", 1), ("b", None)], []],
    pa.struct([("x", pa.int32()), ("y", pa.string())]): [{"x": 1, "y": None}],
}
"""Values of every type that a DataFrame or a checked column has, and of some other types."""

ALL_TYPES = pa.schema([(str(kind), kind) for kind in VALUES])
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])


def all_types() -> pa.RecordBatch:
    """Return a batch with every value of every type, and nulls where a column has fewer."""
    rows = max(len(values) for values in VALUES.values()) + 1
    return pa.record_batch(
        [pa.array(values + [None] * (rows - len(values)), kind) for kind, values in VALUES.items()],
        schema=ALL_TYPES,
    )


def numbers(first: int, rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"k": f"key {n}", "v": n} for n in range(first, first + rows)], SCHEMA
    )


@pytest.fixture(params=["memory", "local"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> StateBackend:
    """An empty store of each kind."""
    return open_backend(
        f"memory://{uuid.uuid4().hex}" if request.param == "memory" else str(tmp_path)
    )


def in_memory() -> StateBackend:
    return open_backend(f"memory://{uuid.uuid4().hex}")


def write(
    backend: StateBackend, *batches: pa.RecordBatch, compression: Compression = "lz4"
) -> SegmentRef:
    with backend.open_output(PATH) as output:
        writer = SegmentWriter(PATH, lambda: output, compression)
        for batch in batches:
            writer.write(batch)
        (ref,) = writer.close()
        return ref


# --- reading and writing --------------------------------------------------------------------------


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_arrow_type_is_read_back(backend: StateBackend, compression: Compression) -> None:
    batch = all_types()
    ref = write(backend, batch, compression=compression)
    (result,) = read_segment(backend, ref)
    assert result.schema.equals(ALL_TYPES, check_metadata=True)
    assert result.equals(batch)
    result.validate(full=True)


# --- damage ---------------------------------------------------------------------------------------


def refuse(backend: StateBackend, ref: SegmentRef) -> str:
    """Read a damaged segment, which yields no batch; return the error's text."""
    batches = read_segment(backend, ref)
    with pytest.raises(CorruptLog, match="000000-0-x") as caught:
        next(batches)
    assert "Restore" in caught.value.remedy
    return str(caught.value)


def overwrite(backend: StateBackend, data: bytes) -> None:
    backend.delete([PATH])
    backend.create(PATH, data)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_segment_with_a_flipped_byte_is_refused(compression: Compression) -> None:
    backend = in_memory()
    ref = write(backend, numbers(0, 20), numbers(20, 20), compression=compression)
    data = backend.read(PATH)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        overwrite(backend, bytes(damaged))
        refuse(backend, ref)
    overwrite(backend, data)
    assert len(list(read_segment(backend, ref))) == 2


def test_damaged_large_segment_is_refused(backend: StateBackend) -> None:
    """Given a file that is read in several parts, and damage in the last one."""
    ref = write(backend, numbers(0, 200_000), compression="none")
    assert ref.bytes > 4 << 20
    data = bytearray(backend.read(PATH))
    data[-1] ^= 1
    overwrite(backend, bytes(data))
    refuse(backend, ref)


@pytest.mark.parametrize("at", ["body", "footer"])
def test_error_names_a_segment_that_cannot_be_read(backend: StateBackend, at: str) -> None:
    """Given a segment of a newer release, which matches its manifest and which pyarrow cannot read."""
    write(backend, numbers(0, 500))
    data = bytearray(backend.read(PATH))
    place = {"body": len(data) // 2, "footer": len(data) - 30}[at]
    data[place : place + 20] = bytes(byte ^ 0xFF for byte in data[place : place + 20])
    overwrite(backend, bytes(data))
    ref = SegmentRef(path=PATH, rows=500, bytes=len(data), digest=digest(bytes(data)))
    with pytest.raises(CorruptLog, match=r"pyarrow .* cannot read it") as refused:
        list(read_segment(backend, ref))
    assert PATH in refused.value.summary
    assert "wal-sink give-up" in refused.value.remedy


# --- append ---------------------------------------------------------------------------------------

TASK = Task(Execution("query", "run", 7), partition=3, task_attempt=1)


def as_is(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"v": batch.column("v").cast(pa.string())})


@pytest.mark.parametrize("batches", [0, 1, 3])
def test_task_without_rows_leaves_no_segment(backend: StateBackend, batches: int) -> None:
    """The report still names query, run and epoch (rule `segments`)."""
    appended = append(
        [numbers(0, 0)] * batches, task=TASK, store=backend, check=as_is, compression="lz4"
    )
    assert appended.segments == ()
    assert appended.execution == ("query", "run", 7)
    assert backend.list() == []


def test_task_writes_one_segment_with_its_rows_in_order(backend: StateBackend) -> None:
    batches = [numbers(0, 0), numbers(0, 3), numbers(0, 0), numbers(3, 1), numbers(4, 6)]
    appended = append(batches, task=TASK, store=backend, check=as_text, compression="zstd")
    (ref,) = appended.segments
    assert backend.list() == [ref.path]
    assert ref.path.startswith(f"{paths.segment_folder(7)}000003-1-")
    values = [v for batch in read_segment(backend, ref) for v in batch.column("v").to_pylist()]
    assert values == list("0123456789"), "the segment has the rows as the check returns them"
    assert ref.rows == 10


def test_attempts_of_a_task_write_separate_segments(backend: StateBackend) -> None:
    """Spark may run two attempts with the same numbers at the same time."""
    for _ in range(2):
        append([numbers(0, 1)], task=TASK, store=backend, check=as_is, compression="lz4")
    assert len(backend.list()) == 2


@pytest.mark.parametrize("error", [InvalidRow, KeyboardInterrupt, GeneratorExit])
def test_failed_task_leaves_no_segment(backend: StateBackend, error: type[BaseException]) -> None:
    """A row is refused, or Spark cancels the task between two batches."""

    def rows() -> Iterator[pa.RecordBatch]:
        yield numbers(0, 5)
        raise error("")

    with pytest.raises(error):
        append(rows(), task=TASK, store=backend, check=as_is, compression="lz4")
    assert backend.list() == []
    assert backend.sweep_unfinished(0) == 0


@pytest.mark.parametrize("most", [0, 1, 600, 1_000_000])
def test_small_segment_is_inlined_and_large_is_a_file(backend: StateBackend, most: int) -> None:
    batches = [numbers(0, 50), numbers(50, 500)]
    appended = append(
        batches, task=TASK, store=backend, check=as_is, compression="none", inline_bytes=most
    )
    (ref,) = appended.segments
    assert ref.is_file == (ref.bytes > most)
    assert backend.list() == [segment.path for segment in appended.files]
    assert [segment.path for segment in appended.files] == ([ref.path] if ref.is_file else [])
    assert backend.sweep_unfinished(0) == 0
    data = backend.read(ref.path) if ref.data is None else ref.data
    assert (len(data), digest(data)) == (ref.bytes, ref.digest)
    assert list(read_segment(backend, ref)) == [numbers(0, 550)]


@pytest.mark.parametrize("most", [0, 1_000_000])
@pytest.mark.parametrize("failing", [False, True])
def test_worker_frees_a_finished_segment(backend: StateBackend, most: int, failing: bool) -> None:
    """Spark uses a worker for many tasks. The garbage collector does not see what pyarrow holds."""

    def check(batch: pa.RecordBatch) -> pa.RecordBatch:
        if failing and batch.column("v")[0].as_py() == 5:
            raise InvalidRow("Column k is null", "Filter such rows out.")
        return batch

    with contextlib.suppress(InvalidRow):
        append(
            (numbers(n, 10_000) for n in range(10)),
            task=TASK,
            store=backend,
            check=check,
            compression="none",
            inline_bytes=most,
        )
    gc.collect()
    assert not any(type(item) is SegmentWriter for item in gc.get_objects())


def test_inlined_bytes_of_all_tasks_are_bounded() -> None:
    assert most_inline(0) == most_inline(3) == 64 * 1024
    for tasks, mib in ((8, 0.5), (200, 1.25), (10_000, 2.25)):
        assert sum(map(most_inline, range(tasks))) < mib * 1024 * 1024


# --- a part of a segment ---------------------------------------------------------------------------


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.data())
def test_any_range_of_rows_is_read_back(sizes: list[int], data: st.DataObject) -> None:
    """A task of a flush job reads a range, and no row of another task."""
    backend = in_memory()
    total = sum(sizes)
    ref = write(backend, *(numbers(sum(sizes[:i]), size) for i, size in enumerate(sizes)))
    start = data.draw(st.integers(0, total - 1))
    stop = data.draw(st.integers(start + 1, total))
    segment = read_segment(backend, ref, start, stop)
    values = [v for batch in segment for v in batch.column("v").to_pylist()]
    assert values == list(range(start, stop))


def test_segment_with_another_number_of_rows_is_refused() -> None:
    backend = in_memory()
    ref = write(backend, numbers(0, 10), numbers(10, 10))
    for text in (19, 21):
        wrong = msgspec.structs.replace(ref, rows=text)
        with pytest.raises(CorruptLog, match=f"has 20 rows, and its manifest says {text}"):
            list(read_segment(backend, wrong, 5))
