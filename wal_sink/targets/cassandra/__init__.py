"""Apache Cassandra as a target. docs/cassandra.md says how the target treats types, nulls and timestamps.

In this table, a module imports only modules of its own line and of later lines. `target` imports modules that
load the driver inside its methods.

====================  ==================================================================
`target`              implements the interface of a target
`session`             writes rows and moves the ledger row
`table_changes`       detects that a table has changed since a plan was made
`plan`                makes the plan of a query when the query starts
`server`, `ledger`    refuses clusters and roles; reads and writes the ledger's table
`sender`              sends requests, repeats failed ones, and finds refused rows
`batches`             joins slices, and divides rows into requests
`replicas`            finds the first local replica of each partition
`statements`          makes the statements of a plan, and encodes rows with timestamps and TTLs
`driver/`             wraps the driver: connections, errors, requests in flight
`table`               reads the metadata of a table; makes CREATE TABLE statements
`rows`                checks rows in tasks, and converts deletes, TTLs and event times
`check`               casts and refuses values in the tasks
`encode`              encodes values in the native protocol
`type_mismatches`     finds column types that do not fit
`types`               has the CQL types
`arrow_buffers`       converts Arrow's buffers from and to numpy arrays
`options`             has the options
`row_plan`            has the typed details of a plan
====================  ==================================================================
"""

from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.targets.cassandra.target import CassandraTarget

__all__ = ["CassandraOptions", "CassandraTarget"]
