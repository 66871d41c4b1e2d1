"""`batch_writer` with a micro-batch, called without a JVM."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from tests.protocol.engine import Rows, Run, World
from tests.protocol.publishing import micro_batch, query_in
from tests.protocol.quarantining import rows_of
from wal_sink.errors import AlreadyPublished, InvalidRow, MissingManifest
from wal_sink.model.manifest import Appended, Task
from wal_sink.options import SinkOptions, as_texts
from wal_sink.publish.micro_batch import MicroBatch
from wal_sink.spark.batch_writer import conformed
from wal_sink.wal.segment import read_segment

CALL, OTHER_CALL = "a" * 16, "b" * 16


@pytest.fixture
def query(tmp_path: Path) -> World:
    """Return a query whose checkpoint and log are folders."""
    return query_in(tmp_path)


def append(
    batch: MicroBatch,
    run: Run,
    rows: Rows,
    *,
    partition: int = 0,
    attempt: int = 0,
    call: str = CALL,
) -> Appended:
    """Run one task of a call of the writer; return its report."""
    return batch.append([run.query.frame(rows)], Task(run.execution, partition, attempt, call))


def test_refused_row_keeps_its_epoch_column(query: World, tmp_path: Path) -> None:
    run = query.run()
    batch = micro_batch(run, tmp_path)
    sink = SinkOptions(checkpoint=str(tmp_path), epoch_column="epoch", on_invalid_row="quarantine")
    batch = batch._replace(configuration=batch.configuration._replace(sink=sink))
    schema = run.query.frame([]).schema.append(pa.field("epoch", pa.int64(), nullable=False))
    batch = batch._replace(plans={"memory": run.query.store_target.plan(schema, "k")})
    appended = append(batch, run, [("a", 1), (None, 2)])
    for segments in (appended.segments, appended.refused):
        (segment,) = segments
        (result,) = read_segment(query.log_backend, segment)
        rows = rows_of(result) if segments is appended.refused else result
        assert rows.column("epoch").to_pylist() == [run.next]


@pytest.fixture
def files_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tasks write a file for the smallest segment."""
    monkeypatch.setattr("wal_sink.publish.append._INLINE", 0)


def paths_of(query: World) -> Sequence[str]:
    """Return the paths of the segments in the log."""
    return query.log_backend.list("segments/")


def test_batch_without_partitions_is_published(query: World, tmp_path: Path) -> None:
    """Otherwise the rows of a dead attempt at this epoch would be flushed."""
    died = query.run()
    died.publish([("a", 1)])
    run = query.run()
    run.write_offsets()
    micro_batch(run, tmp_path).publish(run.execution, [])
    run.write_commit([])
    assert query.flushed() == {}
    assert query.mark() == 0


def test_second_write_of_a_batch_is_refused(query: World, tmp_path: Path) -> None:
    died = query.run()
    died.publish([("a", 1)])
    run = query.run()
    run.write_offsets()
    batch = micro_batch(run, tmp_path)
    batch.publish(run.execution, [append(batch, run, [("a", 2)])])
    with pytest.raises(AlreadyPublished, match="has published epoch") as caught:
        batch.publish(run.execution, [append(batch, run, [("b", 3)], call=OTHER_CALL)])
    assert "df.union" in caught.value.remedy
    run.write_commit([[("a", 2)]])
    assert query.flushed() == {"a": 2}


@pytest.mark.rule("publish")
def test_epoch_completed_before_the_first_write_raises_missing_manifest(
    query: World, tmp_path: Path
) -> None:
    """Spark completed the epoch after the writer was made."""
    run = query.run()
    for _ in range(2):
        run.write_offsets()
        run.write_commit([])
    run.write_offsets()
    batch = micro_batch(run, tmp_path)
    appended = [append(batch, run, [("c", 2)])]
    with pytest.raises(MissingManifest, match="Epoch 0"):
        batch.publish(run.execution, appended, begins_after=-1)


@pytest.mark.usefixtures("files_only")
def test_failed_call_deletes_only_its_own_segments(query: World, tmp_path: Path) -> None:
    """Another call, or another run, may be about to publish its own segments."""
    old, run = query.run(), query.run()
    run.write_offsets()
    batch = micro_batch(run, tmp_path)
    others = {
        append(batch, run, [("a", 1)], call=OTHER_CALL).segments[0].path,
        append(batch, old, [("a", 1)]).segments[0].path,
    }
    append(batch, run, [("a", 1)])
    append(batch, run, [("b", 1)], partition=1)
    with pytest.raises(InvalidRow):
        batch.append(
            [pa.record_batch({"k": [None], "v": [1]}, run.query.frame([]).schema)],
            Task(run.execution, 2, 0, CALL),
        )
    batch.discard_call(run.execution, CALL)
    assert set(paths_of(query)) == others


def test_columns_are_cast_to_the_types_of_the_plan() -> None:
    """Tasks of `mapInArrow` get timestamps in the session's time zone, also in nested columns."""
    here, utc = pa.timestamp("us", "America/New_York"), pa.timestamp("us", "UTC")

    def schema(time: pa.DataType) -> pa.Schema:
        inside = pa.list_(pa.struct([("at", time)]))
        return pa.schema([("at", time), ("in", inside), ("map", pa.map_(pa.string(), time))])

    rows = {
        "at": pa.array([1_000, None], here),
        "in": pa.array([[{"at": 2_000}], None], schema(here).field("in").type),
        "map": pa.array([[("k", 3_000)], []], schema(here).field("map").type),
    }
    batch = conformed(pa.record_batch(rows, schema(here)), schema(utc))
    assert batch.schema == schema(utc)
    assert batch.column("at").cast(pa.int64()).to_pylist() == [1_000, None]
    assert batch.column("map").items.cast(pa.int64()).to_pylist() == [3_000]


def test_options_may_be_python_values() -> None:
    options = {
        "wal.retention": 5,
        "cassandra.ssl.enabled": True,
        "table": "t",
        "cassandra.ttl": None,
    }
    assert as_texts(options) == {
        "wal.retention": "5",
        "cassandra.ssl.enabled": "true",
        "table": "t",
    }
