"""What an operator asks of a query, without Spark.

`deep`, `show` and `quarantine` only read; `flush` hosts a flusher; `repair` and `adopt` change the state of
the log, or a ledger row. A change says its `consequences` before `carry_out` makes it. Each can be run again
after it died.
"""
