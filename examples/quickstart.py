import os, sys

os.environ["PYSPARK_PYTHON"] = sys.executable  # Spark's workers need the same Python
import wal_sink
from deltalake import DeltaTable
from pyspark.sql import SparkSession

table, checkpoint = os.path.abspath("quickstart/table"), "quickstart/checkpoint"
spark = SparkSession.builder.getOrCreate()
spark.range(1000).write.mode("append").parquet("quickstart/source")
stream = spark.readStream.schema("id long").parquet("quickstart/source")
options = {"target": "delta", "delta.path": table, "createTable": "true"}
with wal_sink.register(spark):
    writer = stream.writeStream.format("wal_sink").trigger(availableNow=True)
    writer.options(checkpointLocation=checkpoint, **options).start().awaitTermination()

print(DeltaTable(table).count(), "rows")
print(wal_sink.status(checkpoint))
