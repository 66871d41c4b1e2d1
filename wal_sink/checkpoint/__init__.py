"""Spark's checkpoint of a query. The sink only reads Spark's files."""
