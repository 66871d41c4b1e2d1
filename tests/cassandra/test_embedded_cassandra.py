"""The embedded node is a real one: it starts, keeps what it acknowledged, and never outlives us."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from wal_sink.testing.embedded_cassandra import CassandraDidNotStart, EmbeddedCassandra
from wal_sink.testing.maven import JavaNotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.cassandra

# Starts a node in a thread that ends, and waits to be killed.
_PARENT = """
import sys, threading, time
from wal_sink.testing.embedded_cassandra import EmbeddedCassandra
node = EmbeddedCassandra(sys.argv[1])
thread = threading.Thread(target=node.start)
thread.start()
thread.join()
time.sleep(1)
print(node.execute("SELECT release_version FROM system.local")[0][0], flush=True)
time.sleep(600)
"""


def pids_naming(folder: Path) -> list[int]:
    """Find the Java processes whose command line has the folder in it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # ended meanwhile
            command = (process / "cmdline").read_bytes()
            if str(folder).encode() in command and b"CassandraDaemon" in command:
                found.append(int(process.name))
    return found


def eventually(condition: Callable[[], bool], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCassandra]:
    """A node that the tests of this file stop, kill and pause, with a folder that is kept."""
    with EmbeddedCassandra(tmp_path_factory.mktemp("node")) as node:
        node.create_keyspace("kept")
        node.execute("CREATE TABLE kept.rows (id int PRIMARY KEY, value text)")
        node.execute("INSERT INTO kept.rows (id, value) VALUES (%s, %s)", (1, "one"))
        yield node


def test_executes_and_returns_rows(node: EmbeddedCassandra) -> None:
    (row,) = node.execute("SELECT id, value FROM kept.rows WHERE id = 1")
    assert (row.id, row.value) == (1, "one")
    assert node.start() is node, "starting a running node changes nothing"


def test_acknowledged_row_survives_kill(node: EmbeddedCassandra) -> None:
    port, (pid,) = node.port, pids_naming(node.folder)
    node.execute("INSERT INTO kept.rows (id, value) VALUES (2, 'acknowledged')")
    node.kill()
    assert not node.running
    assert pids_naming(node.folder) == []
    with pytest.raises(RuntimeError, match="not running"):
        node.execute("SELECT * FROM kept.rows")

    node.start()
    assert node.port == port
    assert pids_naming(node.folder) != [pid]
    assert node.execute("SELECT value FROM kept.rows WHERE id = 2") == [("acknowledged",)]


def test_paused_node_keeps_silent_until_resumed(node: EmbeddedCassandra) -> None:
    session = node.session()
    node.pause()
    assert node.running
    pending = session.execute_async("SELECT value FROM kept.rows WHERE id = 1")
    answered = threading.Event()
    pending.add_callbacks(lambda rows: answered.set(), lambda error: answered.set())
    assert not answered.wait(1)
    node.resume()
    assert answered.wait(10)
    assert pending.result().one() == ("one",)

    node.pause()
    node.resume()
    assert node.execute("SELECT value FROM kept.rows WHERE id = 1") == [("one",)]


def test_stops_in_order_even_when_paused(node: EmbeddedCassandra) -> None:
    node.pause()
    node.stop()
    assert not node.running
    assert "Cassandra shutdown complete" in node.log.read_text()[-2000:]
    node.stop()
    node.start()
    assert node.execute("SELECT value FROM kept.rows WHERE id = 1") == [("one",)]


def test_second_node_and_fresh_keyspace(
    node: EmbeddedCassandra, cassandra: EmbeddedCassandra, keyspace: str
) -> None:
    assert {node.port, node.port + 1}.isdisjoint({cassandra.port, cassandra.port + 1})
    keyspaces = "SELECT keyspace_name FROM system_schema.keyspaces"
    assert (keyspace,) in cassandra.execute(keyspaces)
    assert (keyspace,) not in node.execute(keyspaces)
    assert ("kept",) not in cassandra.execute(keyspaces)
    assert cassandra.execute(f"CREATE TABLE {keyspace}.t (id int PRIMARY KEY)") == []


def test_listens_on_the_loopback_address_only(node: EmbeddedCassandra) -> None:
    (pid,) = pids_naming(node.folder)
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            inodes.add(str(descriptor.readlink()))
    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:  # 0A: LISTEN
                address, port = fields[1].split(":")
                listening.append((socket.inet_ntoa(bytes.fromhex(address)[::-1]), int(port, 16)))
    assert sorted(listening) == [("127.0.0.1", node.port), ("127.0.0.1", node.port + 1)]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a child's life to its parent")
def test_dies_with_a_killed_parent(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    parent = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", _PARENT, str(tmp_path)],
        cwd=root,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        try:
            said = parent.stdout.readline()
            assert said == "5.0.9\n", "the node outlives the thread that called start()"
            assert len(pids_naming(tmp_path)) == 1
        finally:
            parent.kill()
            parent.wait()
    assert eventually(lambda: pids_naming(tmp_path) == [])


def test_failure_to_start_shows_the_log(tmp_path: Path) -> None:
    node = EmbeddedCassandra(tmp_path, settings={"no_such_setting": 1})
    with pytest.raises(CassandraDidNotStart, match="no_such_setting"):
        node.start()
    assert not node.running
    node.close()


def test_taken_port_is_refused(tmp_path: Path) -> None:
    node = EmbeddedCassandra(tmp_path)
    with (
        socket.create_server((node.host, node.port)),
        pytest.raises(CassandraDidNotStart, match=str(node.port)),
    ):
        node.start()
    node.close()


def test_temporary_folder_is_removed() -> None:
    node = EmbeddedCassandra()
    assert node.folder.is_dir()
    node.close()
    assert not node.folder.exists()


def test_missing_or_wrong_java_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "home" / "bin" / "java"
    old.parent.mkdir(parents=True)
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    node = EmbeddedCassandra(tmp_path / "node")
    with pytest.raises(JavaNotFound, match=r"of version 11, PATH has none") as caught:
        node.start()
    assert "apt install openjdk-17-jre-headless" in caught.value.remedy
    node.close()
