"""CQL types: which Spark type fits, how values are cast, which are refused."""
