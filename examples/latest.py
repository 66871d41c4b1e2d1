"""The latest state of each order, one row per key: `python examples/latest.py [HOST [PORT [KEYSPACE]]]`.

In Cassandra a row with the same key replaces the older row. The sink keeps Spark's order: a later micro-batch
wins, and within a micro-batch the later row of a Spark partition. So a table has the latest state if the
events of a key arrive in their order, as from a Kafka topic with that key, without a shuffle in between.

Here changes arrive late, and some arrive twice. So the query keeps the newest version of each order in
Spark's state. In a micro-batch it emits at most one row for an order, and only a row with a newer version.
The row depends on the state. wal_sink sends only the rows of the attempt that Spark has checkpointed,
together with that state.
"""

from collections.abc import Iterable, Iterator

import pandas as pd
from pyspark.sql.streaming.state import GroupState

import wal_sink
from shop import Shop, session

ROW = "order_id bigint, version int, status string, changed_at timestamp"

shop = Shop()
shop.execute(
    "CREATE TABLE IF NOT EXISTS order_status (order_id bigint PRIMARY KEY, version int,"
    " status text, changed_at timestamp)"
)


def newest(
    _key: tuple[int], changes: Iterable[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """Yield the newest version of an order, if it is newer than the version in the table."""
    rows = pd.concat(changes).sort_values("version").tail(1)
    version = int(rows["version"].iloc[0])
    if not state.exists or version > state.get[0]:
        state.update((version,))
        yield rows


latest = (
    shop.events()
    .select("order_id", "version", "status", "changed_at")
    .groupBy("order_id")
    .applyInPandasWithState(newest, ROW, "version int", "append", "NoTimeout")
)

with wal_sink.register(session()):  # before start(): it adds the format, and flushes
    writer = latest.writeStream.format("wal_sink").options(**shop.options("order_status"))
    writer.outputMode("append").trigger(availableNow=True).start().awaitTermination()
# After the block, the table has the newest version of every order that is checkpointed.
print(f"order_status has every epoch up to {shop.status('order_status').flushed}.")
