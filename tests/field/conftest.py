"""Spark, as the tests of `spark/` have it."""

from tests.spark.conftest import checkpoint, spark  # noqa: F401 -- fixtures
