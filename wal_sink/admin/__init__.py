"""What an operator asks of a query, without Spark.

`deep`, `show` and `quarantine` only read; `flush` and `follow` host flushers; `repair` changes the state of
the log, or a ledger row.
"""
