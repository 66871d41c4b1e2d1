"""What operators do with a query, without Spark.

`deep_status`, `show` and `quarantine` only read. `flush` runs flushers, and `under` finds queries for it.
`repair` changes the state of the log or a ledger row. `confirmation` guards secrets against a forged log.
"""
