"""The port for Prometheus, and the names that it exposes."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.request
from pathlib import Path

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


def test_port_that_is_taken_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OptionError, match=f"port {port}: Address already in use"):
            Exposition(port)
    Exposition(port).close()


def test_metrics_port_answers_only_this_host_by_default() -> None:
    """With 0.0.0.0 the port is open on every address of the host; else on the given address."""
    for host, listens in (
        ((), "127.0.0.1"),
        (("0.0.0.0",), "0.0.0.0"),
        (("127.0.0.2",), "127.0.0.2"),
    ):
        with contextlib.closing(Exposition(0, *host)) as exposition:
            assert exposition.host == listens
            assert listening(exposition.port) == {listens}
            answering = "127.0.0.1" if listens == "0.0.0.0" else listens
            assert "wal_sink_query_info" in page(exposition.port, answering)


def test_address_of_another_host_is_refused() -> None:
    for host in ("192.0.2.1", "no.such.host.invalid"):
        with pytest.raises(OptionError, match=f"cannot be served on {host}, port 0: "):
            Exposition(0, host)


@pytest.mark.parametrize(
    "request_line",
    [b"\x16\x03\x01 a TLS hello", b"GET", b"\r\n", b"GET /metrics HTTP/9.9", b"X" * 70_000],
)
def test_malformed_request_does_not_disturb_other_requests(
    request_line: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    """The application's output stays empty."""
    with contextlib.closing(Exposition(0)) as exposition:
        with (
            contextlib.suppress(ConnectionError),
            socket.create_connection(("127.0.0.1", exposition.port)) as client,
        ):
            client.sendall(request_line + b"\r\n\r\n")
            while client.recv(1 << 16):
                pass
        assert page(exposition.port)
    assert capfd.readouterr() == ("", "")


def listening(port: int) -> set[str]:
    """Return the addresses on which this host listens on a port."""
    names = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        local, state = line.split()[1], line.split()[3]
        address, _, number = local.partition(":")
        if state == "0A" and int(number, 16) == port:
            names.add(socket.inet_ntoa(bytes.fromhex(address)[::-1]))
    return names


@pytest.mark.parametrize("port", [-1, 65_536])
def test_wrong_port_is_refused(port: int) -> None:
    with pytest.raises(OptionError, match="is not a port"):
        Exposition(port)


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
