"""The port for Prometheus, and the names that it exposes."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.protocol.engine import World
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import OptionError
from wal_sink.metrics.server import Exposition


def page(port: int, host: str = "127.0.0.1") -> str:
    """Return the page that Prometheus scrapes."""
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def watch(exposition: Exposition, world: World) -> None:
    exposition.watch(
        *(world.query_id, Checkpoint(world.checkpoint), world.log_backend, "memory", 'a."B"'),
        several=False,
    )


def test_free_port_answers_until_it_is_closed(world: World) -> None:
    threads = set(threading.enumerate())
    exposition = Exposition(0)
    watch(exposition, world)
    families = {
        family.name: family for family in text_string_to_metric_families(page(exposition.port))
    }
    (info,) = families["wal_sink_query_info"].samples
    assert info.labels == {
        "query_id": world.query_id,
        "target": "",
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


@pytest.mark.parametrize(
    ("host", "answers"),
    [
        ((), {"127.0.0.1"}),
        (("127.0.0.2",), {"127.0.0.2"}),
        (("0.0.0.0",), {"127.0.0.1", "127.0.0.2"}),
    ],
)
def test_metrics_port_answers_only_this_host_by_default(
    host: tuple[str, ...], answers: set[str]
) -> None:
    """With 0.0.0.0 the port is open on every address of the host."""
    with contextlib.closing(Exposition(0, *host)) as exposition:
        for address in ("127.0.0.1", "127.0.0.2"):
            refused = pytest.raises(OSError, match="refused")
            with contextlib.nullcontext() if address in answers else refused:
                assert "wal_sink_query_info" in page(exposition.port, address)


def test_port_or_host_that_cannot_be_opened_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OptionError, match=f"port {port}: Address already in use"):
            Exposition(port)
    Exposition(port).close()
    for wrong in (-1, 65_536):
        with pytest.raises(OptionError, match="is not a port"):
            Exposition(wrong)
    for host in ("192.0.2.1", "no.such.host.invalid"):
        with pytest.raises(OptionError, match=f"cannot be served on {host}, port 0: "):
            Exposition(0, host)


def test_second_close_completes_an_interrupted_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an interrupt, a second `close` frees the port."""
    exposition = Exposition(0)

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(threading.Event, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            exposition.close()
    exposition.close()
    with pytest.raises(OSError, match="refused"):
        page(exposition.port)
