"""The command `wal-sink demo`: streams flights under SIGKILL by wal_sink, and by `foreachBatch`."""
