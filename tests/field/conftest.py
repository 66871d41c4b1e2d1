"""A checkpoint, as the tests of `spark/` have it."""

from tests.spark.conftest import checkpoint  # noqa: F401 -- a fixture
