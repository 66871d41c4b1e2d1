"""The write-ahead log: its objects, over a state backend."""
