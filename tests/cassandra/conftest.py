"""What the tests of a module share."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from wal_sink.demo.cassandra import Node


@pytest.fixture(scope="module")
def shared(cassandra: Node) -> Iterator[str]:
    """One keyspace for all tests of a module: to create and drop one takes longer than most of them."""
    name = f"test_{secrets.token_hex(8)}"
    cassandra.create_keyspace(name)
    yield name
    # Of many tables: on a busy machine that takes longer than the driver waits for an answer by default.
    cassandra.session().execute(f"DROP KEYSPACE {name}", timeout=None)
