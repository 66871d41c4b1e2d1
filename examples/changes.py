"""A table that follows another database: `python examples/changes.py [HOST [PORT [KEYSPACE]]]`.

The topic has the change records that Debezium writes for a table of customers. A record has the key of the
row, the operation (`op`: c, u, r or d), and the row after the change (`after`, null for a delete). Each
delete is followed by a tombstone, a record without a value, after which Kafka drops the key.
`operationColumn` names the column with `op`, and `operations` says which of its words is a delete. After each
micro-batch the table has exactly the customers that the other database had at that point.

The changes of a key must arrive in their order, as from a Kafka topic with that key, without a shuffle in
between. Within a micro-batch the last row of a key wins, whether it is an upsert or a delete.
"""

import json
import os
import random
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import from_json

import wal_sink
from shop import Shop, session

KEY = "customer_id bigint"
ENVELOPE = "op string, after struct<name: string, city: string, points: int, notes: string>"
UNAVAILABLE = "__debezium_unavailable_value"

OPERATIONS = {"c": "upsert", "u": "upsert", "r": "upsert", "d": "delete"}
OPTIONS = {
    "operationColumn": "op",
    "operations": json.dumps(OPERATIONS),
    "cassandra.nulls": "write",
    "unavailableValue": UNAVAILABLE,
}
"""`after` is the whole row, so a null in it clears the column. PostgreSQL's log leaves out large values that
an update has not changed. Debezium writes a text in their place, and such a cell keeps its value."""

CHANGES, CUSTOMERS = (180, 160, 140, 120), 30
"""Number of changes in each file of the topic. Each file is smaller than the one before: after a crash Spark
may read two files in one micro-batch, and then it reads the larger one first. Kafka keeps the order
itself."""


def changed_customers(spark: SparkSession, topic: str) -> DataFrame:
    """Stream the topic, a file a micro-batch: `customer_id`, `op`, and the columns of the row.

    With Kafka, the first line is `spark.readStream.format("kafka").option("subscribe", "customers")` with
    its bootstrap servers and `.selectExpr("CAST(key AS string) AS key", "CAST(value AS string) AS value")`.
    """
    records = (
        spark.readStream.schema("key string, value string")
        .option("maxFilesPerTrigger", 1)
        .json(topic)
    )
    changes = records.where("value IS NOT NULL").select(  # without tombstones
        from_json("key", KEY).alias("key"), from_json("value", ENVELOPE).alias("change")
    )
    return changes.select("key.customer_id", "change.op", "change.after.*")


def write_topic(folder: Path) -> str:
    """Write the topic as files of JSON records, unless it exists; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if len(list(folder.glob("*.json"))) < len(CHANGES):
        chance = random.Random(2016)
        table: set[int] = set()
        for number, changes in enumerate(CHANGES):
            records: list[tuple[int, dict[str, object] | None]] = []
            for change in range(changes):
                customer = chance.randrange(CUSTOMERS)
                if customer in table and chance.random() < 0.4:
                    table.remove(customer)
                    records += [(customer, {"op": "d", "after": None}), (customer, None)]
                    continue
                op = "u" if customer in table else "r" if number == 0 else "c"
                table.add(customer)
                after = {
                    "name": f"customer {customer}",
                    "city": chance.choice(["Utrecht", "Gent", None]),
                    "points": 1_000 * number + change,
                    "notes": UNAVAILABLE
                    if op == "u" and chance.random() < 0.7
                    else f"{change} " * 9,
                }
                records.append((customer, {"op": op, "after": after}))
            path = folder / f"{number:02}.json"
            path.write_text("".join(_record(*row) for row in records), encoding="utf-8")
            os.utime(path, (number, number))  # Spark reads the oldest file first
    return str(folder)


def _record(customer: int, value: dict[str, object] | None) -> str:
    key, text = json.dumps({"customer_id": customer}), None if value is None else json.dumps(value)
    return json.dumps({"key": key, "value": text}) + "\n"


def main() -> None:
    """Follow the topic to its end."""
    shop = Shop()
    shop.execute(
        "CREATE TABLE IF NOT EXISTS customers (customer_id bigint PRIMARY KEY, name text, city text,"
        " points int, notes text)"
    )
    rows = changed_customers(session(), write_topic(shop.folder / "customers"))
    with wal_sink.register(session()):  # before start(): it adds the format, and flushes
        writer = rows.writeStream.format("wal_sink").options(**shop.options("customers"), **OPTIONS)
        writer.trigger(availableNow=True).start().awaitTermination()
    # After the block, the table has the customers of the other database, as of the end of the topic.
    print(f"customers has every epoch up to {shop.status('customers').flushed}.")


if __name__ == "__main__":
    main()
