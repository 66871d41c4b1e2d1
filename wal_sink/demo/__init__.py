"""Streams real flights under SIGKILL, beside what people do today: `wal-sink demo`."""
