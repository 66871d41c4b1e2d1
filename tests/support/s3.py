"""A fixture of an S3 server, one for the whole run, with buckets that misbehave."""

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

    :param port: its port on 127.0.0.1.
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
        """Make a bucket; return its URL. `tests.support.s3_server` lists the behaviours."""
        name = f"{behaviour}-{uuid.uuid4().hex[:12]}"
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")
        urllib.request.urlopen(request).close()
        return f"s3://{name}"

    def backend(self, behaviour: str = "plain") -> S3Backend:
        """Return an empty store in a new bucket."""
        return self.open(f"{self.bucket(behaviour)}/the/log")

    def open(self, url: str) -> S3Backend:
        """Return the store at a URL."""
        return S3Backend(url, self.options)

    def counts(self) -> dict[str, int]:
        """Return the number of requests of each kind since the last call."""
        return dict(self.ask("counts"))

    def ask(self, what: str) -> Any:
        """Send a command to the server, see `tests.support.s3_server`."""
        with urllib.request.urlopen(f"{self.endpoint}/{what}") as answer:
            return json.load(answer)


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """Start the server in its own process, so that other processes can use it."""
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
