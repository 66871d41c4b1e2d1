"""The command line, `wal-sink`."""
