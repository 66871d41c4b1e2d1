"""What holds for all tests: the shipped fixtures, and the packages of Spark's workers."""

from __future__ import annotations

import os
import sys

pytest_plugins = ["wal_sink.testing.fixtures"]  # `cassandra` and `keyspace`

os.environ["PYSPARK_PYTHON"] = sys.executable  # Spark's workers need the same packages
