"""Revenue per product and hour, from a topic of orders: `python examples/orders.py [HOST [PORT [KEYSPACE]]]`.

A windowed aggregation in output mode append: Spark emits a window once, when the watermark has passed the end
of the window. So each row of the table is written once and is final. Windows that were not final when the
query ended stay in Spark's state, and are emitted when the query continues.
"""

from pyspark.sql import functions as F

import wal_sink
from shop import Shop, session

shop = Shop()
shop.execute(
    "CREATE TABLE IF NOT EXISTS revenue_by_hour (sku text, hour timestamp, orders bigint,"
    " revenue decimal, PRIMARY KEY (sku, hour))"
)

sold = (
    shop.events()
    .where("status = 'placed'")
    .withWatermark("changed_at", "12 hours")  # how late an order may come and still count
    # A topic of Kafka may have a record twice.
    .dropDuplicatesWithinWatermark(["order_id"])
    .select("changed_at", F.explode("items").alias("item"))
)
revenue = (
    sold.groupBy("item.sku", F.window("changed_at", "1 hour"))
    .agg(F.count("*").alias("orders"), F.sum(F.expr("item.quantity * item.price")).alias("revenue"))
    # The table's columns, by name. The sum of decimals has the precision that Spark gives it.
    .select("sku", F.col("window.start").alias("hour"), "orders", "revenue")
)

with wal_sink.register(session()):  # before start(): it adds the format, and flushes
    writer = revenue.writeStream.format("wal_sink").options(**shop.options("revenue_by_hour"))
    writer.outputMode("append").trigger(availableNow=True).start().awaitTermination()
# After the block, every window that Spark has emitted is in Cassandra, once.
print(f"revenue_by_hour has every epoch up to {shop.status('revenue_by_hour').flushed}.")
