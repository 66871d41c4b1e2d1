"""Fixtures of a real PostgreSQL.

The fixture `postgresql` is a started server, one for the whole run; `schema` is the name of a new schema in
it, dropped after the test. Pytest's header has the version. If PostgreSQL is not installed, its programs
are downloaded once.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from wal_sink.demo.postgresql import Server, programs, version
from wal_sink.errors import WalSinkError


def pytest_report_header() -> str:
    """Return the line that names the version, or the reason why there is no PostgreSQL."""
    try:
        return f"postgresql: {version(folder := programs())}, {folder}"
    except WalSinkError as error:
        return f"postgresql: tests that need it fail, since {error.what}"


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """Start the server; a test that stops or pauses a server starts its own."""
    with Server() as server:
        yield server


@pytest.fixture
def schema(postgresql: Server) -> Iterator[str]:
    """Return the name of a new schema, which is dropped after the test."""
    name = f"test_{secrets.token_hex(8)}"
    postgresql.execute(f"CREATE SCHEMA {name}")
    yield name
    postgresql.execute(f"DROP SCHEMA {name} CASCADE")
