"""The demo: real flights under fire, beside what people do today. Run it by `wal-sink demo`."""
