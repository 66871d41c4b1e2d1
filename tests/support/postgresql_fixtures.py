"""A real PostgreSQL for pytest: a private server.

`postgresql` is a started server, one for the whole run; `schema` is the name of a new schema in it, dropped
after the test. Its version stands in pytest's header. Nothing starts before a test asks for it. Where
PostgreSQL is not installed, its programs are downloaded once.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from wal_sink.demo.servers.postgresql import Server, programs, version
from wal_sink.errors import WalSinkError


def pytest_report_header() -> str:
    """Say which PostgreSQL this run uses, or why it has none."""
    try:
        return f"postgresql: {version(folder := programs())}, {folder}"
    except WalSinkError as error:
        return f"postgresql: tests that need it fail, since {error.what}"


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """Start the one server; a test that leaves it stopped or paused takes one of its own."""
    with Server() as server:
        yield server


@pytest.fixture
def schema(postgresql: Server) -> Iterator[str]:
    """Return the name of a new schema in `postgresql`, dropped after the test."""
    name = f"test_{secrets.token_hex(8)}"
    postgresql.execute(f"CREATE SCHEMA {name}")
    yield name
    postgresql.execute(f"DROP SCHEMA {name} CASCADE")
