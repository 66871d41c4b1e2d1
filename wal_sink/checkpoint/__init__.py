"""Spark's checkpoint of a query, read only."""
