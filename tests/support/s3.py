"""A server of S3 for the whole run, and a bucket for each test that wants one."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from state_backends import S3Backend


class S3:
    """A started server.

    :param port: on 127.0.0.1.
    """

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self.options: dict[str, object] = {
            "endpoint_url": self.endpoint,
            "key": "test",
            "secret": "Geheim",
            "client_kwargs": {"region_name": "us-east-1"},
        }

    def bucket(self, behaviour: str = "plain") -> str:
        """Make a new bucket; return its URL. See `tests.support.s3_server` for what it may be like."""
        name = f"{behaviour}-{uuid.uuid4().hex[:12]}"
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")
        urllib.request.urlopen(request).close()
        return f"s3://{name}"

    def backend(self, behaviour: str = "plain") -> S3Backend:
        """Return an empty store in a new bucket."""
        return self.open(f"{self.bucket(behaviour)}/the/log")

    def open(self, url: str) -> S3Backend:
        """Open a place in a bucket."""
        return S3Backend(url, self.options)

    def counts(self) -> dict[str, int]:
        """Return how many requests of each kind came since the last call."""
        return dict(self.ask("counts"))

    def ask(self, what: str) -> Any:
        """Ask the server itself, see `tests.support.s3_server`."""
        with urllib.request.urlopen(f"{self.endpoint}/{what}") as answer:
            return json.load(answer)


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """Start the server, in a process of its own: other processes are to use it, too."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.s3_server"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        assert process.stdout is not None
        try:
            yield S3(int(process.stdout.readline()))
        finally:
            process.kill()
