"""The port that answers Prometheus, and the names that it shows."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.metrics.watched import new_world
from tests.protocol.engine import World
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import OptionError
from wal_sink.metrics.server import Exposition, expose


@pytest.fixture
def world() -> Iterator[World]:
    """A new query, in memory."""
    made = new_world()
    yield made
    made.forget()


def page(port: int) -> str:
    """What Prometheus gets."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def watch(exposition: Exposition, world: World) -> None:
    exposition.watch(world.query_id, Checkpoint(world.checkpoint), world.log, 'a."B"')


def test_a_free_port_answers_until_it_is_closed(world: World) -> None:
    threads = set(threading.enumerate())
    exposition = expose(0)
    watch(exposition, world)
    families = {each.name: each for each in text_string_to_metric_families(page(exposition.port))}
    (info,) = families["wal_sink_query_info"].samples
    assert info.labels == {
        "query_id": world.query_id,
        "checkpoint": world.checkpoint.url,
        "table": 'a."B"',
    }
    assert [f.name for f in families.values() if not f.name.startswith("wal_sink_")] == []
    assert [f.name for f in families.values() if not f.documentation] == []
    exposition.close()
    exposition.close()
    with pytest.raises(OSError, match="refused"):
        page(exposition.port)
    assert set(threading.enumerate()) - threads == set()


def test_a_port_that_is_taken_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OptionError, match=f"port {port}: Address already in use"):
            expose(port)
    expose(port).close()


@pytest.mark.parametrize("port", [-1, 65_536])
def test_what_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(OptionError, match="is no port"):
        expose(port)


def test_two_who_ask_for_one_port_share_it(world: World) -> None:
    """The handle of a stopped session may still flush when the next session wants its port."""
    first = expose(0)
    second = expose(first.port)
    watch(first, world)
    first.close()
    assert world.query_id in page(second.port)
    second.close()
    with pytest.raises(OSError, match="refused"):
        page(second.port)
    again = expose(first.port)
    assert world.query_id not in page(again.port)
    again.close()


def test_an_interrupted_close_is_made_good_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while a handle is closed: it is closed once more, and the port is free."""
    exposition = expose(0)

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(threading.Event, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            exposition.close()
    exposition.close()
    with pytest.raises(OSError, match="refused"):
        page(exposition.port)


def test_without_the_package_it_says_what_to_install() -> None:
    """And only a process that wants metrics needs it."""
    program = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from wal_sink.flush import flusher\n"
        "from wal_sink.metrics import server\n"
        "from wal_sink.spark import register\n"
        "server.expose(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "OptionError" in done.stderr
    assert "pip install prometheus_client" in done.stderr
