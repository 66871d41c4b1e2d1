import os, sys

os.environ["PYSPARK_PYTHON"] = sys.executable  # Spark's workers need the same Python
import wal_sink
from deltalake import DeltaTable, Field, Schema
from pyspark.sql import SparkSession

table = os.path.abspath("quickstart/table")
spark = SparkSession.builder.getOrCreate()
spark.range(1000).write.mode("append").parquet("quickstart/source")
DeltaTable.create(table, Schema([Field("id", "long")]), mode="ignore")
stream = spark.readStream.schema("id long").parquet("quickstart/source")
options = {"checkpointLocation": "quickstart/checkpoint", "target": "delta", "delta.path": table}
with wal_sink.register(spark):
    writer = stream.writeStream.format("wal_sink").trigger(availableNow=True)
    writer.options(**options).start().awaitTermination()

print(DeltaTable(table).to_pyarrow_table().num_rows, wal_sink.status("quickstart/checkpoint"))
