"""Queries in one session, and what their user gets from the sink."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr, udf

import wal_sink
from tests.spark.conftest import ROWS_PER_FILE, Shop
from tests.spark.tables import Table, last_commit, state_of
from tests.support.waiting import until
from wal_sink.demo.cassandra import EmbeddedCassandra
from wal_sink.wal.location import locate

pytestmark = [pytest.mark.spark, pytest.mark.cassandra]


def ids_of(files: int) -> list[int]:
    """Return the ids in the first files of a source."""
    return list(range(files * ROWS_PER_FILE))


def test_end_of_block_flushes_everything_checkpointed(shop: Shop) -> None:
    """The log, which has a location of its own, is trimmed, and `status` says that nothing is pending."""
    logs = str(shop.folder / "log")
    shop.add_files(3)
    with wal_sink.register(shop.spark):
        shop.run(**{"wal.location": logs, "wal.compression": "zstd", "wal.retention": 0})
    status = wal_sink.status(shop.checkpoint, wal=logs)
    assert shop.table.ids() == ids_of(3)
    assert (status.checkpointed, status.published, status.flushed) == (2, 2, 2)
    assert (status.pending_epochs, status.pending_rows, status.safe_to_delete) == (0, 0, True)
    log = locate(shop.checkpoint, logs).open_log(status.query_id)
    assert log.list("segments/") == log.list("manifests/") == []
    assert state_of(shop.checkpoint, logs).targets[0].mark.sums.rows == 3 * ROWS_PER_FILE


def test_ended_query_leaves_no_thread_of_py4j(shop: Shop) -> None:
    """A driver may start a query every ten seconds for weeks."""

    def threads() -> int:
        return sum(thread.name.endswith("(run)") for thread in threading.enumerate())

    shop.add_files(1)
    with wal_sink.register(shop.spark):
        shop.run()  # the listener bus of Spark gets its connection
        count = threads()
        for _ in range(3):
            shop.run()
        until(lambda: threads() <= count)


def test_await_flushed_waits_for_what_is_checkpointed_when_called(shop: Shop) -> None:
    """`await_flushed` takes the query, or the location of the checkpoint."""
    shop.add_files(2)
    with wal_sink.register(shop.spark) as sink:
        query = shop.run()
        flushed = sink.await_flushed(query, timeout=60)
        assert shop.table.ids() == ids_of(2)
        assert flushed.epoch == 1
        again = wal_sink.await_flushed(query, timeout=0)
        assert (again.epoch, again.rows) == (1, 0)
        assert sink.status(query).flushed == 1
    assert wal_sink.await_flushed(shop.checkpoint).epoch == 1
    assert wal_sink.await_flushed(f"file://{shop.checkpoint}").rows == 0


def test_failed_query_is_flushed_to_its_last_checkpoint(shop: Shop) -> None:
    """The block raises the query's own exception."""
    shop.add_files(3)
    bad = expr(f"IF(id = {2 * ROWS_PER_FILE + 7}, raise_error('bad row'), text)")
    with (
        pytest.raises(StreamingQueryException, match="bad row"),
        wal_sink.register(shop.spark),
    ):
        shop.run(shop.rows.withColumn("text", bad))
    assert shop.table.ids() == ids_of(2)


def test_garbage_collection_of_a_worker_skips_imported_modules(shop: Shop) -> None:
    """A task of the query has frozen the modules of its worker, in which later tasks run."""
    shop.add_files()
    with wal_sink.register(shop.spark):
        shop.run()
    frozen = udf(lambda _: gc.get_freeze_count(), "long", useArrow=False)
    rows = shop.spark.range(6, numPartitions=6).select(frozen("id")).collect()
    assert max(count for (count,) in rows) > 10_000


def test_query_moves_from_foreach_batch_with_its_checkpoint(shop: Shop) -> None:
    """The query continues at the source's next offset."""
    shop.add_files(2)
    epochs: list[int] = []
    job = shop.rows.writeStream.option("checkpointLocation", shop.checkpoint)
    job = job.foreachBatch(lambda _rows, epoch: epochs.append(epoch))
    job.trigger(availableNow=True).start().awaitTermination()
    shop.add_files()
    with wal_sink.register(shop.spark):
        shop.run()
    assert (epochs, wal_sink.status(shop.checkpoint).flushed) == ([0, 1], 2)
    assert shop.table.ids() == ids_of(3)[2 * ROWS_PER_FILE :]


def test_every_spelling_of_a_checkpoint_is_one_folder(shop: Shop) -> None:
    """Spark and the sink resolve blanks, percent signs, umlauts and a trailing slash to the same folder."""
    shop.add_files()
    checkpoint = str(shop.folder / "odd %20 näme+1")
    for form in ("{0}", "file:{0}", "file://{0}/"):
        with wal_sink.register(shop.spark):
            shop.run(checkpointLocation=form.format(checkpoint))
        assert wal_sink.status(form.format(checkpoint)).flushed == 0
    assert shop.table.ids() == ids_of(1)


@pytest.mark.timeout(600)
def test_queries_continue_while_cassandra_is_down(spark: SparkSession, tmp_path: Path) -> None:
    """Cassandra is killed in mid-stream, and starts after a second run of the query has reported the outage.

    Then the table is complete without any action of an operator.
    """
    options = {"cassandra.requestTimeout": 2}
    with EmbeddedCassandra() as node, wal_sink.register(spark, drain_timeout=120) as sink:
        node.create_keyspace("shop")
        shop = Shop(spark, Table(node, "shop"), tmp_path)
        shop.add_files(4)
        first = shop.start(**options)
        until(lambda: sink.status(first).flushed >= 0)
        node.kill()
        first.awaitTermination()
        assert last_commit(shop.checkpoint) == 3
        assert sink.status(first).flushed < 3
        shop.add_files()
        again = shop.run(**options)
        assert again.exception() is None
        until(lambda: sink.status(again).last_error is not None)
        node.start()
        assert sink.await_flushed(again, timeout=90).epoch == 4
        assert shop.table.ids() == ids_of(5)
        assert sink.status(again).last_error is None
