"""What holds for all tests: the shipped fixtures, and the packages of Spark's workers."""

from __future__ import annotations

import os
import sys

from tests.s3 import s3  # noqa: F401 - a fixture
from wal_sink.testing import docker_engine
from wal_sink.testing.cassandra_container import IMAGE

pytest_plugins = ["wal_sink.testing.fixtures"]  # `cassandra` and `keyspace`

os.environ["PYSPARK_PYTHON"] = sys.executable  # Spark's workers need the same packages


def pytest_report_header() -> str:
    """Say when the tests marked `docker` are skipped, before anybody wonders."""
    try:
        docker_engine.find(IMAGE)
    except docker_engine.DockerNotUsable as error:
        return f"docker: tests so marked are skipped, since {error.what}"
    return "docker: tests so marked run"
