"""A schema of a real PostgreSQL for one test, and a user without privileges."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sql.stores import Postgresql
from wal_sink.demo.postgresql import Server


@pytest.fixture
def store(postgresql: Server, schema: str) -> Postgresql:
    return Postgresql(postgresql, schema)


@pytest.fixture
def user(store: Postgresql) -> Iterator[str]:
    """Make a user with the password "p" and no privileges; return the name."""
    name = f"user_{store.schema}"
    store.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'p'")
    yield name
    store.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")
