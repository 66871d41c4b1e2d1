"""Each customer's orders in one wide partition: `python examples/wide_rows.py [HOST [PORT [KEYSPACE]]]`.

One partition answers what a customer has ordered, newest first. Structs become user-defined types by the
names of their fields, arrays become sets or frozen lists, maps become maps. A list has to be frozen: one
that is not would double its elements when it is written again.
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

# An order that comes twice needs no care: it is the same row twice.
placed = shop.events().where("status = 'placed'").withColumnRenamed("changed_at", "placed_at")
rows = placed.select(
    "customer_id", "placed_at", "order_id", "ship_to", "items", "tags", "notes"
).repartition("customer_id")  # rows of one partition go in batches: several times as fast

with wal_sink.register(session()):  # before start(): it adds the format, and flushes
    writer = rows.writeStream.format("wal_sink").options(**shop.options("orders_by_customer"))
    writer.outputMode("append").trigger(availableNow=True).start().awaitTermination()
# Left the block: everything checkpointed is in Cassandra.
print(f"orders_by_customer has every epoch up to {shop.status('orders_by_customer').flushed}.")
