"""Emulators of object stores, installed by go and npm, with a proxy that loses answers."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple, Self

from wal_sink.demo.maven import cache_folder
from wal_sink.demo.server import choose_port

GCS_VERSION = "1.56.1"
AZURITE_VERSION = "3.35.0"
ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The public key of every Azurite."""
_PATIENCE_S = 120.0


class Store(NamedTuple):
    """A running emulator."""

    name: str
    version: str
    scheme: str
    options: dict[str, object]
    front: Front
    make_bucket: Callable[[str], None]

    def bucket(self) -> str:
        """Make a bucket; return its URL."""
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        self.make_bucket(name)
        return f"{self.scheme}://{name}"


@contextlib.contextmanager
def fake_gcs() -> Iterator[Store]:
    """Run fake-gcs-server, which emulates Google Cloud Storage."""
    bin_folder = cache_folder() / f"fake-gcs-server-{GCS_VERSION}"
    program = bin_folder / "fake-gcs-server"
    if not program.exists():
        where = f"github.com/fsouza/fake-gcs-server@v{GCS_VERSION}"
        _install("go", ["install", where], {"GOBIN": str(bin_folder)})
    port = choose_port("127.0.0.1")
    with Front(port) as front, _running(
        [program, "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", port,
         "-external-url", front.url, "-log-level", "error"], port,
    ):  # fmt: skip

        def make_bucket(name: str) -> None:
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/storage/v1/b?project=p",
                json.dumps({"name": name}).encode(),
                {"Content-Type": "application/json"},
            )
            urllib.request.urlopen(request).close()

        options: dict[str, object] = {"endpoint_url": front.url, "token": "anon", "project": "p"}
        yield Store("fake-gcs-server", GCS_VERSION, "gs", options, front, make_bucket)


@contextlib.contextmanager
def azurite() -> Iterator[Store]:
    """Run Azurite, which emulates Azure Blob Storage."""
    folder = cache_folder() / f"azurite-{AZURITE_VERSION}"
    program = folder / "node_modules" / ".bin" / "azurite-blob"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _install("npm", ["install", "--prefix", str(folder), f"azurite@{AZURITE_VERSION}"], {})
    port = choose_port("127.0.0.1")
    with Front(port) as front, _running(
        [program, "--inMemoryPersistence", "--blobHost", "127.0.0.1", "--blobPort", port,
         "--skipApiVersionCheck", "--silent"], port,
    ):  # fmt: skip
        from azure.storage.blob import BlobServiceClient  # noqa: PLC0415 -- where this store is asked for

        url = f"{front.url}/{ACCOUNT}"
        login = f"AccountName={ACCOUNT};AccountKey={_KEY}"
        connection = f"DefaultEndpointsProtocol=http;{login};BlobEndpoint={url};"

        def make_bucket(name: str) -> None:
            BlobServiceClient.from_connection_string(connection).create_container(name)

        yield Store(
            "azurite",
            AZURITE_VERSION,
            "abfs",
            {"connection_string": connection},
            front,
            make_bucket,
        )


def _install(tool: str, arguments: list[str], environment: dict[str, str]) -> None:
    assert shutil.which(tool), f"`make test-all` installs an emulator by {tool}: install {tool}"
    subprocess.run([tool, *arguments], check=True, env={**os.environ, **environment}, timeout=1_200)


@contextlib.contextmanager
def _running(command: list[object], port: int) -> Iterator[None]:
    process = subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None, f"{command[0]} has ended ({process.returncode})"
            assert time.monotonic() < deadline, f"{command[0]} does not answer"
            time.sleep(0.1)
        yield
    finally:
        process.kill()
        process.wait()


class Front:
    """A proxy that can lose answers to conditional writes.

    :param port: the port of the store on 127.0.0.1.
    """

    def __init__(self, port: int) -> None:
        front = self

        class Handler(_Handler):
            upstream = port

            def loses(self) -> bool:
                return front._loses()

        self._left = 0
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        """The URL for clients."""

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @contextlib.contextmanager
    def losing(self, number: int) -> Iterator[None]:
        """Lose the answers to the next conditional writes. The block must make that number of such writes."""
        self._left = number
        yield
        assert self._left == 0, f"{self._left} answers were not lost"

    def _loses(self) -> bool:
        with self._lock:
            if not self._left:
                return False
            self._left -= 1
            return True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream: int

    def loses(self) -> bool:
        raise NotImplementedError

    def _pass_on(self) -> None:
        body = self._body()
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=120)
        headers = {k: v for k, v in self.headers.items() if k.lower() != "transfer-encoding"}
        if body or self.command in {"PUT", "POST"}:
            headers["Content-Length"] = str(len(body))
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        if self._is_conditional() and self.loses():
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self.send_response_only(answer.status, answer.reason)
        without_body = self.command == "HEAD" or answer.status in {204, 304}
        left_out = {"transfer-encoding", "connection"} | (
            set() if without_body else {"content-length"}
        )
        for name, value in answer.getheaders():
            if name.lower() not in left_out:
                self.send_header(name, value)
        if not without_body:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if not without_body:
            self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on  # noqa: N815

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _is_conditional(self) -> bool:
        """Return True if this request makes an object unless it exists. The start of an upload makes none."""
        if "uploadType=resumable" in self.path and "upload_id=" not in self.path:
            return False
        # The last part of an upload has the size of the object.
        ends = self.headers.get("Content-Range", "").rpartition("/")[2].isdigit()
        return ends or "ifGenerationMatch=0" in self.path or "If-None-Match" in self.headers

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Do not log."""
