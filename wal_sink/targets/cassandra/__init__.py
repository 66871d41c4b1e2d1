"""Apache Cassandra as a target. docs/cassandra.md says how it treats types, nulls and timestamps.

A module imports only modules of its line and of lines below. Only what `target` imports late loads the
driver.

====================  ==================================================================
`target`              the interface to the sink
`session`             a flusher's connection
`table_changes`       detects that a table has changed since a plan was made
`plan`                the plan of a query, made when the query starts
`server`, `ledger`    servers and roles that are refused; the ledger's table and row
`sender`              sends requests, repeats failed ones, and finds refused rows
`batches`             joins slices, and divides rows into requests by partition and size
`statements`          the statements of a plan, and the statement of each row
`driver/`             connections, errors, and batches of encoded rows
`table`               the metadata of a table; statements that create it
`rows`                deletes, TTLs and event times at the start, in tasks and in flushes
`check`               casts and refusals of values in the tasks
`encode`              values of the native protocol
`type_mismatches`     column types that do not fit, with the remedies
`types`               the CQL types
`arrow_buffers`       Arrow's buffers as numpy arrays
`options`             the options
`row_plan`            the typed details of a plan
====================  ==================================================================

`driver` needs neither `encode` nor `types`.
"""

from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.targets.cassandra.target import CassandraTarget

__all__ = ["CassandraOptions", "CassandraTarget"]
