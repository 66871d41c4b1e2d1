"""A write-ahead-log sink for Spark Structured Streaming."""
