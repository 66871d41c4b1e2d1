"""Queries in one session, and what their user gets from the sink."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr, udf

import wal_sink
from tests.spark.conftest import ROWS_PER_FILE, write_file, write_source
from tests.spark.tables import Table, last_commit, start, state_of, stream
from tests.support.waiting import until
from wal_sink.demo.servers.cassandra import EmbeddedCassandra
from wal_sink.wal.location import locate

pytestmark = [pytest.mark.spark, pytest.mark.cassandra]


def run(
    spark: SparkSession, source: str, table: Table, checkpoint: str, **options: object
) -> wal_sink.Status:
    """Run a query to its end under a handle of its own; return its status after the block."""
    with wal_sink.register(spark):
        start(stream(spark, source), table, checkpoint, **options).awaitTermination()
    return wal_sink.status(checkpoint, wal=str(options["wal.location"]) if options else None)


def ids_of(files: int) -> list[int]:
    """Return the ids in the first files of a source."""
    return list(range(files * ROWS_PER_FILE))


def test_end_of_block_flushes_everything_checkpointed(
    spark: SparkSession, table: Table, checkpoint: str, tmp_path: Path
) -> None:
    """The log, which has a location of its own, is trimmed, and `status` says that nothing is pending."""
    logs = str(tmp_path / "log")
    status = run(
        spark,
        write_source(tmp_path / "source", 3),
        table,
        checkpoint,
        **{"wal.location": logs, "wal.compression": "zstd", "wal.retention": 0},
    )
    assert table.ids() == ids_of(3)
    assert (status.checkpointed, status.published, status.flushed) == (2, 2, 2)
    assert (status.pending_epochs, status.pending_rows, status.safe_to_delete) == (0, 0, True)
    log = locate(checkpoint, logs).open_log(status.query_id)
    assert log.backend.list("segments/") == log.backend.list("manifests/") == []
    assert state_of(checkpoint, logs).targets[0].mark.sums.rows == 3 * ROWS_PER_FILE


def test_await_flushed_waits_for_what_is_checkpointed_when_called(
    spark: SparkSession, table: Table, checkpoint: str, tmp_path: Path
) -> None:
    """It takes the query, and the location of the checkpoint."""
    source = write_source(tmp_path / "source", 2)
    with wal_sink.register(spark) as sink:
        query = start(stream(spark, source), table, checkpoint)
        query.awaitTermination()
        flushed = sink.await_flushed(query, timeout=60)
        assert table.ids() == ids_of(2)
        assert flushed.epoch == 1
        again = wal_sink.await_flushed(query, timeout=0)
        assert (again.epoch, again.rows) == (1, 0)
        assert sink.status(query).flushed == 1
    assert wal_sink.await_flushed(checkpoint).epoch == 1
    assert wal_sink.await_flushed(f"file://{checkpoint}").rows == 0


def test_failed_query_is_flushed_to_its_last_checkpoint(
    spark: SparkSession, table: Table, checkpoint: str, tmp_path: Path
) -> None:
    """The block raises the query's own exception."""
    source = write_source(tmp_path / "source", 3)
    rows = stream(spark, source).withColumn(
        "text", expr(f"IF(id = {2 * ROWS_PER_FILE + 7}, raise_error('bad row'), text)")
    )
    with pytest.raises(StreamingQueryException, match="bad row"), wal_sink.register(spark):
        start(rows, table, checkpoint).awaitTermination()
    assert table.ids() == ids_of(2)


def test_garbage_collection_of_a_worker_skips_imported_modules(
    spark: SparkSession, table: Table, checkpoint: str, tmp_path: Path
) -> None:
    """A task of the query has frozen them in its worker, which later tasks use."""
    run(spark, write_source(tmp_path / "source", 1), table, checkpoint)
    frozen = udf(lambda _: gc.get_freeze_count(), "long", useArrow=False)
    rows = spark.range(6, numPartitions=6).select(frozen("id")).collect()
    assert max(count for (count,) in rows) > 10_000


def test_query_moves_from_foreach_batch_with_its_checkpoint(
    spark: SparkSession, table: Table, checkpoint: str, tmp_path: Path
) -> None:
    """The query continues at the source's next offset."""
    source = write_source(tmp_path / "source", 2)
    epochs: list[int] = []
    job = stream(spark, source).writeStream.option("checkpointLocation", checkpoint)
    job = job.foreachBatch(lambda _rows, epoch: epochs.append(epoch))
    job.trigger(availableNow=True).start().awaitTermination()
    write_file(Path(source), 2)
    status = run(spark, source, table, checkpoint)
    assert (epochs, status.flushed) == ([0, 1], 2)
    assert table.ids() == ids_of(3)[2 * ROWS_PER_FILE :]


def test_checkpoint_by_any_name_is_the_same(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    """Spark and the sink resolve blanks, percent signs, umlauts and a trailing slash to the same folder."""
    source = write_source(tmp_path / "source", 1)
    checkpoint = str(tmp_path / "odd %20 näme+1")
    for form in ("{0}", "file:{0}", "file://{0}/"):
        assert run(spark, source, table, form.format(checkpoint)).flushed == 0
    assert table.ids() == ids_of(1)


@pytest.mark.timeout(600)
def test_queries_continue_while_cassandra_is_down(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    """Cassandra is killed in mid-stream, and starts after a second run of the query has reported the outage.

    Then the table is complete without any action of an operator.
    """
    source = write_source(tmp_path / "source", 4)
    with EmbeddedCassandra() as node, wal_sink.register(spark, drain_timeout=120) as sink:
        node.create_keyspace("shop")
        table = Table(node, "shop")
        first = start(stream(spark, source), table, checkpoint, **{"cassandra.requestTimeout": 2})
        until(lambda: sink.status(first).flushed >= 0)
        node.kill()
        first.awaitTermination()
        assert last_commit(checkpoint) == 3
        assert sink.status(first).flushed < 3
        write_file(Path(source), 4)
        again = start(stream(spark, source), table, checkpoint, **{"cassandra.requestTimeout": 2})
        again.awaitTermination()
        assert again.exception() is None
        until(lambda: sink.status(again).last_error is not None)
        node.start()
        assert sink.await_flushed(again, timeout=90).epoch == 4
        assert table.ids() == ids_of(5)
        assert sink.status(again).last_error is None
