import os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable  # Spark's workers need the same Python
import wal_sink
from deltalake import DeltaTable, Field, Schema
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
spark.range(1000).write.mode("append").parquet("quickstart/source")
DeltaTable.create("quickstart/table", Schema([Field("id", "long")]), mode="ignore")
stream = spark.readStream.schema("id long").parquet("quickstart/source")
with wal_sink.register(spark):
    writer = stream.writeStream.format("wal_sink").trigger(availableNow=True)
    writer = writer.option("target", "delta").option("delta.path", f"{os.getcwd()}/quickstart/table")
    writer.option("checkpointLocation", "quickstart/checkpoint").start().awaitTermination()

print(DeltaTable("quickstart/table").to_pyarrow_table().num_rows, "rows")
print(wal_sink.status("quickstart/checkpoint"))
