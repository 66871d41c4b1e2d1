"""Apache Cassandra as a target. docs/cassandra.md says how it treats types, nulls and timestamps.

A module imports only modules of its line and of lines below. Only what `target` imports late loads the
driver.

================  ======================================================================
`target`          the interface to the sink
`session`         a flusher's connection
`plan`            the plan of a query, made when the query starts
`write/`          from slices of the log to acknowledged requests; changes of the table
`check`           the casts and refusals in the tasks
`server`          servers and roles that are refused
`compare`, `ddl`  a DataFrame compared with a table; statements that create tables
`ledger`          the ledger's table and row
`table`           the metadata of a table
`encode`          values of the native protocol
`driver/`         connections, errors, and batches of encoded rows
`types`           the CQL types
`arrow_buffers`   Arrow's buffers as numpy arrays
`options`         the options
`row_plan`        the typed details of a plan
================  ======================================================================

`driver` needs neither `encode` nor `types`.
"""

from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.targets.cassandra.target import CassandraTarget

__all__ = ["CassandraOptions", "CassandraTarget"]
