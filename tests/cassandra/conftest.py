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
    # To drop many tables takes longer than the driver's default timeout if the machine is busy.
    cassandra.session().execute(f"DROP KEYSPACE {name}", timeout=None)
