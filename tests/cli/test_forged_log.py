"""Commands over a log to which an attacker has written.

The forged options name a host of the attacker. The tests observe whether a command connects to it.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import Done, run
from tests.protocol.engine import World
from wal_sink.targets.cassandra.options import ENVIRONMENT
from wal_sink.testing.memory_target import MemoryOptions, MemoryTarget

PASSWORD = "S3CRET"
COMMANDS = [
    ("flush",),
    ("status", "--deep"),
    ("set-mark", "--to", "0", "--yes"),
    ("adopt", "--yes"),
]


@pytest.fixture
def attacker() -> Iterator[socket.socket]:
    """Return a socket to which a command would connect."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


class Cassandra(MemoryTarget):
    """A target in memory with the name of Cassandra."""

    name = "cassandra"


class Forged(World):
    """A query whose newest run has the attacker's options."""

    forged: dict[str, str]

    @property
    def options(self) -> dict[str, str]:
        """The options in the state of the log."""
        return self.forged


def forge(world: World, options: dict[str, str]) -> None:
    """Publish an epoch by a run with these options."""
    forged = Forged(world.checkpoint, world.log_backend, Cassandra(MemoryOptions(keys="k")))
    forged.query_id, forged.clock, forged.forged = world.query_id, world.clock, options
    forged.run().batch([("customer-4711", 1)])


@pytest.fixture
def forged(world: World, attacker: socket.socket, tmp_path: Path) -> Path:
    """Return the folder of a query whose options name the attacker's host."""
    options = {
        "target": "cassandra",
        "cassandra.contactPoints": "127.0.0.1",
        "cassandra.port": str(attacker.getsockname()[1]),
        "cassandra.requestTimeout": "0.2",
        "cassandra.username": "prod",
        "keyspace": "ks",
        "table": "t",
    }
    forge(world, options)
    return tmp_path


def command(folder: Path, *arguments: str) -> Done:
    verb, *others = arguments
    return run(folder, verb, "checkpoint", *others, "--json")


def was_called(attacker: socket.socket) -> bool:
    """Return True if a command has connected since the last call."""
    called = False
    while True:
        try:
            attacker.accept()[0].close()
        except BlockingIOError:
            return called
        called = True


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda item: item[0])
def test_password_is_sent_to_no_host_from_the_log(
    forged: Path,
    attacker: socket.socket,
    arguments: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command does not connect. Its error has the options to add."""
    monkeypatch.setenv(ENVIRONMENT["password"], PASSWORD)
    done = command(forged, *arguments)
    assert done.code == 2, done.err
    assert not was_called(attacker)
    port = attacker.getsockname()[1]
    words = f"--option cassandra.contactPoints=127.0.0.1 --option cassandra.port={port}"
    assert words in done.out
    assert ENVIRONMENT["password"] in done.out
    assert PASSWORD not in done.out + done.err


def test_command_connects_to_a_confirmed_host(
    forged: Path, attacker: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator confirms by `--option`, or by `WAL_SINK_OPTIONS`, or there is no secret."""
    done = command(forged, "status", "--deep", "--option", "cassandra.username=")
    assert (done.code, was_called(attacker)) == (4, True), done.out
    port = attacker.getsockname()[1]
    words = ("cassandra.contactPoints=127.0.0.1", f"cassandra.port={port}")
    monkeypatch.setenv(ENVIRONMENT["password"], PASSWORD)
    done = command(
        forged, "status", "--deep", *(part for word in words for part in ("--option", word))
    )
    assert (done.code, was_called(attacker)) == (4, True), done.out
    monkeypatch.setenv("WAL_SINK_OPTIONS", " ".join(words))
    done = command(forged, "status", "--deep")
    assert (done.code, was_called(attacker)) == (4, True), done.out


def test_commands_that_only_read_accept_a_forged_log(
    forged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENVIRONMENT["password"], PASSWORD)
    for arguments in (("status",), ("show",), ("flush", "--dry-run")):
        done = command(forged, *arguments)
        assert done.code == 0, done.out


def test_command_imports_no_unconfirmed_module_of_the_log(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import would run the code of the attacker's module."""
    forge(world, {"target": "evil:Target", "table": "t"})
    done_by = tmp_path / "done"
    (tmp_path / "evil.py").write_text(f"import os; os.mkdir({str(done_by)!r})")
    monkeypatch.syspath_prepend(tmp_path)
    done = command(tmp_path, "flush")
    assert (done.code, done.document["error"]) == (2, "OptionError")
    assert "--option target=evil:Target" in done.document["remedy"]
    assert not done_by.exists()
    answer = command(tmp_path, "flush", "--option", "target=evil:Target")
    assert "evil:Target cannot be imported" in answer.document["what"], "it has no such class"
    assert done_by.exists(), "at the operator's word it is imported"
