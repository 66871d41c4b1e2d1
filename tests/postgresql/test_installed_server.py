"""The server that tests and the demo start: settings, and what kill, pause and stop leave of it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import psycopg
import pytest

from wal_sink.demo.postgresql import Server
from wal_sink.demo.server import DidNotStart


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Start a server that these tests stop, kill and pause."""
    with Server() as server:
        server.execute("CREATE TABLE kept (id int PRIMARY KEY)")
        server.execute("INSERT INTO kept VALUES (%s)", (1,))
        yield server


def test_server_is_durable_and_does_not_run_as_root(server: Server) -> None:
    """A client needs the password."""
    assert server.execute("SHOW fsync") == [("on",)]
    assert server.start() is server, "starting a running server changes nothing"
    assert server.data.stat().st_uid != 0 or os.geteuid() != 0
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(server.uri_of("postgres", "wrong"))


def test_killed_server_keeps_committed_rows_only(server: Server) -> None:
    port = server.port
    server.execute("INSERT INTO kept VALUES (2)")
    client = psycopg.connect(server.uri)
    client.execute("INSERT INTO kept VALUES (3)")
    server.kill()
    with pytest.raises(psycopg.OperationalError):
        client.execute("SELECT 1")
    client.close()
    assert not server.running
    with pytest.raises(RuntimeError, match="not running"):
        server.execute("SELECT 1")
    server.start()
    assert server.port == port
    assert server.execute("SELECT id FROM kept ORDER BY id") == [(1,), (2,)]


def test_error_of_a_failed_start_shows_the_log() -> None:
    server = Server({"no_such_setting": 1})
    with pytest.raises(DidNotStart, match="no_such_setting") as caught:
        server.start()
    assert "first error in the lines above" in caught.value.remedy
    with (
        socket.create_server((server.host, server.port)),
        pytest.raises(DidNotStart, match=str(server.port)),
    ):
        server.start()
    assert not server.running
    server.close()
    assert not server.folder.exists()
    server.close()
