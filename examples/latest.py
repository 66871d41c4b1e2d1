"""The latest state of each order, one row per key: `python examples/latest.py [HOST [PORT [KEYSPACE]]]`.

A row that is written again replaces the older one: to Cassandra, every INSERT is an upsert. The sink
keeps the order of what Spark gives out: a later micro-batch wins, and within one the later row of a
Spark partition. That alone gives the latest state where the events of a key come in their order, as from a
Kafka topic with that key, without a shuffle in between.

Here they do not: changes come late and twice. So the query keeps the newest version of each order as
Spark's state, and gives out at most one row per order and micro-batch, and only when it is newer. Which
version that is depends on the state, the state belongs to the attempt that is checkpointed, and no other
attempt's rows are ever sent.
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
    """Give out the newest version of an order, if it is newer than what the table has."""
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
# Left the block: the table has the newest version of every order that is checkpointed.
print(f"order_status has every epoch up to {shop.status('order_status').flushed}.")
