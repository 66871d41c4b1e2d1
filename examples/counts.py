"""Orders per hour and status, also of the present hour: `python examples/counts.py [HOST [PORT [KEYSPACE]]]`.

A windowed aggregation in output mode update: Spark emits a window whenever the window has changed, and the
row of the table is replaced. So the table is as new as the last micro-batch. A row is final when the
watermark has passed its window; `examples/orders.py` writes only final rows. Spark supports Python data
sources only in mode append, so this query writes through `foreachBatch`, with the same log, ledger and
commands.
"""

from pyspark.sql import functions as F

import wal_sink
from shop import Shop, session

shop = Shop()
shop.execute(
    "CREATE TABLE IF NOT EXISTS orders_by_hour (hour timestamp, status text, orders bigint,"
    " PRIMARY KEY (hour, status))"
)
options = shop.options("orders_by_hour")

counts = (
    shop.events()
    .withWatermark("changed_at", "12 hours")  # how long Spark keeps a window that may still change
    .groupBy(F.window("changed_at", "1 hour"), "status")
    .agg(F.size(F.collect_set("order_id")).cast("bigint").alias("orders"))  # records may come twice
    .select(F.col("window.start").alias("hour"), "status", "orders")
)

with wal_sink.register(session()):  # before start(): it adds the format, and flushes
    writer = wal_sink.batch_writer(session(), **options)  # before start(), too
    query = counts.writeStream.outputMode("update").foreachBatch(writer)
    query = query.option("checkpointLocation", options["checkpointLocation"])
    query.trigger(availableNow=True).start().awaitTermination()
# After the block, every count that Spark has emitted is in Cassandra, or a newer count of its window.
print(f"orders_by_hour has every epoch up to {shop.status('orders_by_hour').flushed}.")
