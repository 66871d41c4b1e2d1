"""One real Cassandra node for the whole run, and a keyspace of its own for each test."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator

import pytest

from tests.s3 import s3  # noqa: F401 - a fixture
from wal_sink.testing.embedded_cassandra import EmbeddedCassandra

os.environ["PYSPARK_PYTHON"] = sys.executable  # Spark's workers need the same packages


@pytest.fixture(scope="session")
def cassandra() -> Iterator[EmbeddedCassandra]:
    """A started node; a test that stops or pauses it takes one of its own."""
    with EmbeddedCassandra() as node:
        yield node


@pytest.fixture
def keyspace(cassandra: EmbeddedCassandra) -> Iterator[str]:
    """The name of a new keyspace in `cassandra`, dropped after the test."""
    name = f"test_{secrets.token_hex(8)}"
    cassandra.create_keyspace(name)
    yield name
    cassandra.execute(f"DROP KEYSPACE {name}")
