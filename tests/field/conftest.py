"""A checkpoint, as the tests of `spark/` have it; and a database, as those of `sql/` have it."""

from tests.spark.conftest import checkpoint  # noqa: F401 -- a fixture
from tests.sql.conftest import maria, store  # noqa: F401 -- fixtures
