"""The connection: what the sink uses of the Cassandra driver."""
