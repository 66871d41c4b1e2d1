"""Apache Cassandra as a target; docs/cassandra.md says how it treats types, nulls and timestamps.

Some of the modules beside this one are its face, the others its ground. A line imports from those below it,
never back; only what `target` imports late loads the driver:

=========  =====================================================================
face       `target`, `session`, `ledger`; `check`, which runs in the tasks
`write/`   from slices of the log to acknowledged requests
`schema/`  the table: compared with the DataFrame, planned, watched for drift
`driver/`  connecting, errors, retries, batches of encoded rows
`encode/`  columns to the bytes of rows and routing keys
`types/`   CQL types: what fits, how values are cast, which are refused
ground     `options`, `names`
=========  =====================================================================

`schema` does not need `encode`, and `driver` neither `encode` nor `types`.
"""

from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.targets.cassandra.target import CassandraTarget

__all__ = ["CassandraOptions", "CassandraTarget"]
