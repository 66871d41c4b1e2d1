"""One Connect server for each process of the tests, and a session for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.connect.app import Shop, environment, session
from wal_sink.demo.local_spark import ConnectServer


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """Return the server, which no test kills."""
    folder = tmp_path_factory.mktemp("connect")
    with ConnectServer(folder, environment=environment()) as running:
        yield running


@pytest.fixture
def remote(server: ConnectServer) -> Iterator[Any]:
    """Return a new session of the server."""
    spark = session(server.url)
    yield spark
    spark.stop()


@pytest.fixture
def other(server: ConnectServer) -> Iterator[Any]:
    """Return a session of another client."""
    spark = session(server.url)
    yield spark
    spark.stop()


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """Return a source of two files, and an empty table."""
    return Shop(tmp_path, 2)
