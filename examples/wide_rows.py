"""Each customer's orders in one wide partition: `python examples/wide_rows.py [HOST [PORT [KEYSPACE]]]`.

A partition has the orders of a customer, the newest first. Structs are written to user-defined types by the
names of their fields, arrays to sets or frozen lists, and maps to maps. The list is frozen: a second write of
a list that is not frozen would double its elements.
"""

import wal_sink
from shop import Shop, session

shop = Shop()
shop.execute(
    "CREATE TYPE IF NOT EXISTS address (street text, city text, zip text)",
    "CREATE TYPE IF NOT EXISTS item (sku text, quantity int, price decimal)",
    "CREATE TABLE IF NOT EXISTS orders_by_customer (customer_id bigint, placed_at timestamp,"
    " order_id bigint, ship_to frozen<address>, items frozen<list<frozen<item>>>, tags set<text>,"
    " notes map<text, text>, PRIMARY KEY (customer_id, placed_at, order_id))"
    " WITH CLUSTERING ORDER BY (placed_at DESC, order_id ASC)",
)

# Duplicates need not be dropped: an order that arrives twice is the same row twice.
placed = shop.events().where("status = 'placed'").withColumnRenamed("changed_at", "placed_at")
rows = placed.select(
    "customer_id", "placed_at", "order_id", "ship_to", "items", "tags", "notes"
).repartition("customer_id")  # rows of one partition are sent in batches, which is faster

with wal_sink.register(session()):  # before start(): it adds the format, and flushes
    writer = rows.writeStream.format("wal_sink").options(**shop.options("orders_by_customer"))
    writer.outputMode("append").trigger(availableNow=True).start().awaitTermination()
# After the block, everything checkpointed is in Cassandra.
print(f"orders_by_customer has every epoch up to {shop.status('orders_by_customer').flushed}.")
