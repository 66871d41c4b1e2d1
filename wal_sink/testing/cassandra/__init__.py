"""A real Cassandra for tests: in a container, or embedded."""
