"""The embedded node: it starts, keeps acknowledged rows, and ends with its parent process."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import eventually
from wal_sink.demo.cassandra import EmbeddedCassandra
from wal_sink.demo.maven import JavaNotFound
from wal_sink.demo.server import DidNotStart

pytestmark = pytest.mark.cassandra

# Starts a node in a thread that ends, and waits to be killed.
_PARENT = """
import sys, threading, time
from wal_sink.demo.cassandra import EmbeddedCassandra
node = EmbeddedCassandra(sys.argv[1])
thread = threading.Thread(target=node.start)
thread.start()
thread.join()
time.sleep(1)
print(node.execute("SELECT release_version FROM system.local")[0][0], flush=True)
time.sleep(600)
"""


def pids_naming(folder: Path) -> list[int]:
    """Return the Java processes whose command line contains the folder."""
    result = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # ended meanwhile
            command = (process / "cmdline").read_bytes()
            if str(folder).encode() in command and b"CassandraDaemon" in command:
                result.append(int(process.name))
    return result


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCassandra]:
    """Run a node that tests stop, kill and pause."""
    with EmbeddedCassandra(tmp_path_factory.mktemp("node")) as node:
        node.create_keyspace("kept")
        node.execute("CREATE TABLE kept.rows (id int PRIMARY KEY, value text)")
        node.execute("INSERT INTO kept.rows (id, value) VALUES (1, 'one')")
        yield node


@pytest.mark.test_all
def test_acknowledged_row_survives_kill_of_a_paused_node(node: EmbeddedCassandra) -> None:
    port, (process,) = node.port, pids_naming(node.folder)
    assert node.start() is node, "starting a running node changes nothing"
    node.execute("INSERT INTO kept.rows (id, value) VALUES (2, 'acknowledged')")
    node.pause()
    node.kill()
    assert not node.running
    assert pids_naming(node.folder) == []
    with pytest.raises(RuntimeError, match="not running"):
        node.execute("SELECT * FROM kept.rows")
    node.start()
    assert node.port == port
    assert pids_naming(node.folder) != [process]
    assert node.execute("SELECT value FROM kept.rows WHERE id = 2") == [("acknowledged",)]


@pytest.mark.test_all
def test_paused_node_answers_only_after_it_resumes(node: EmbeddedCassandra) -> None:
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


@pytest.mark.test_all
def test_paused_node_stops_by_a_regular_shutdown(node: EmbeddedCassandra) -> None:
    """A second stop and two calls of `close` change nothing."""
    node.pause()
    node.stop()
    assert not node.running
    assert "Cassandra shutdown complete" in node.log.read_text()[-2000:]
    node.stop()
    node.start()
    assert node.execute("SELECT value FROM kept.rows WHERE id = 1") == [("one",)]
    node.close()
    assert pids_naming(node.folder) == []
    node.close()


def test_taken_port_is_refused(tmp_path: Path) -> None:
    node = EmbeddedCassandra(tmp_path)
    with (
        socket.create_server((node.host, node.port)),
        pytest.raises(DidNotStart, match=str(node.port)),
    ):
        node.start()
    assert not node.running
    node.close()


def listening_on(pid: int) -> list[tuple[str, int]]:
    """Return the addresses on which a process listens."""
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
    return listening


def test_node_dies_with_its_killed_parent(tmp_path: Path) -> None:
    """While it runs, it listens only on the loopback address."""
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
            readline = parent.stdout.readline()
            assert readline == "5.0.9\n", "the node outlives the thread that called start()"
            (pid,) = pids_naming(tmp_path)
            (host, port), second = sorted(listening_on(pid))
            assert (host, second) == ("127.0.0.1", (host, port + 1))
        finally:
            parent.kill()
            parent.wait()
    assert eventually(lambda: pids_naming(tmp_path) == [])


def test_temporary_folder_is_removed() -> None:
    node = EmbeddedCassandra()
    assert node.folder.is_dir()
    node.close()
    assert not node.folder.exists()


def test_error_without_the_right_java_says_what_to_install(
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


def test_java_options_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable is that of Cassandra's own scripts. The error names an option that Java refuses."""
    monkeypatch.setenv("JVM_EXTRA_OPTS", "-Dharmless='two words' -XX:+NoSuchOption")
    node = EmbeddedCassandra()
    with pytest.raises(DidNotStart, match="Unrecognized VM option 'NoSuchOption'") as caught:
        node.start()
    assert "first error in the lines above" in caught.value.remedy
    node.close()
