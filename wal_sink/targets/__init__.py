"""Databases that rows are flushed to: the interface, the registry, and Cassandra."""
