"""Apache Cassandra as a target; docs/cassandra.md says how it treats types, nulls and timestamps.

A line imports from those below it, never back; only what `target` imports late loads the driver:

================  ======================================================================
`target`          what the sink calls; `session` is a flusher's connection
`check`, `plan`   the casts and refusals of the tasks; the agreement with the cluster at the start
`write/`          from slices of the log to acknowledged requests; watches tables for drift
`rows`            upserts and deletes, TTLs and event times, at the start, in the tasks, in the flush
`fitness`         the server as it is, and what it cannot do; `permissions`: what the role lacks
`table`           tables as they are; `compare` has a DataFrame beside one, `ddl` the statements
`encode`          columns to the bytes of rows and routing keys
`driver/`         connections, errors, retries, batches of encoded rows
`rules`, `types`  CQL types: what fits, how values are cast, which are refused
`casts`           casts and constraints of columns; `arrow_buffers`: numpy's view of them
`options`         where the cluster is, and what becomes of rows
`row_plan`        what was agreed about rows, typed
================  ======================================================================

`driver` needs neither `encode` nor `types`.
"""

from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.targets.cassandra.target import CassandraTarget

__all__ = ["CassandraOptions", "CassandraTarget"]
