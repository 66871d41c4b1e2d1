"""Queries of a session without `register`: they publish, and another process flushes them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

import wal_sink
from tests.spark.conftest import ROWS_PER_FILE, Shop
from tests.spark.tables import options
from tests.support.programs import ran
from wal_sink.errors import SchemaMismatch
from wal_sink.spark.data_source import WalSinkDataSource
from wal_sink.spark.query_errors import failure_in

pytestmark = [pytest.mark.spark, pytest.mark.cassandra, pytest.mark.timeout(300)]


def by_writer(shop: Shop) -> None:
    """Run a query by `batch_writer`."""
    options_of = options(shop.table)
    writer = wal_sink.batch_writer(shop.spark, checkpointLocation=shop.checkpoint, **options_of)
    job = shop.rows.writeStream.foreachBatch(writer).trigger(availableNow=True)
    job.option("checkpointLocation", shop.checkpoint).start().awaitTermination()


@pytest.mark.parametrize("run", [Shop.run, by_writer])
def test_query_without_register_is_flushed_by_others(
    shop: Shop, run: Callable[[Shop], object]
) -> None:
    """`wal-sink flush` flushes it, and so does the next start under `register`."""
    shop.add_files(2)
    shop.spark.dataSource.register(WalSinkDataSource)
    run(shop)
    status = wal_sink.status(shop.checkpoint)
    assert (status.checkpointed, status.published, status.flushed) == (1, 1, -1)
    assert f"wal-sink flush file://{shop.checkpoint}" in str(status.remedy)
    assert shop.table.ids() == []

    flushed = ran([str(Path(sys.executable).with_name("wal-sink")), "flush", shop.checkpoint])
    assert flushed.returncode == 0, flushed.stderr
    assert shop.table.ids() == list(range(2 * ROWS_PER_FILE))

    shop.add_files()
    with wal_sink.register(shop.spark):
        run(shop)
    assert shop.table.ids() == list(range(3 * ROWS_PER_FILE))


def test_restart_without_register_compares_the_altered_table(shop: Shop) -> None:
    """Otherwise the epochs would be published by the plan of the first run, and their flush would stop."""
    shop.spark.dataSource.register(WalSinkDataSource)
    shop.add_files()
    shop.run()
    shop.table.cassandra.execute(f"ALTER TABLE {shop.table.keyspace}.{shop.table.name} DROP text")
    shop.add_files()
    with pytest.raises(StreamingQueryException) as caught:
        shop.run()
    assert isinstance(failure_in(str(caught.value)), SchemaMismatch)
    assert wal_sink.status(shop.checkpoint).published == 0
