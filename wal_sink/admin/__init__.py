"""What operators do with a query, without Spark.

`deep`, `show` and `quarantine` only read. `flush` and `follow` run flushers. `repair` changes the state of
the log or a ledger row.
"""
