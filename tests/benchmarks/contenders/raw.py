"""The server's own limit: processes that do nothing but send requests that are ready."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import IO, NamedTuple

import msgspec

from tests.benchmarks.contenders.raw_client import Sent, Share
from tests.benchmarks.process import ROOT
from tests.benchmarks.rows import Source
from tests.benchmarks.run import Taken
from tests.benchmarks.table import Table

NAME = "server's limit"

_SEARCHED = {"grouped", "scattered"}
"""The shapes whose limit is a target's measure."""


class Setting(NamedTuple):
    """How the requests are sent."""

    processes: int
    per_batch: int
    in_flight: int
    """Of each process."""

    def __str__(self) -> str:
        return (
            f"{self.processes} processes, {self.per_batch} rows a batch, {self.in_flight} in flight"
        )


def settings(source: Source) -> list[Setting]:
    """Return what is tried for a shape; larger batches of scattered rows make the server time out."""
    per_batch = {"scattered": (1, 10, 30), "grouped": (100, 300, 600)}.get(
        source.shape, (30, 100, 300)
    )
    processes, in_flight = ((2, 1), (32, 8)) if source.shape in _SEARCHED else ((2,), (16,))
    return [Setting(*item) for item in itertools.product(processes, per_batch, in_flight)]


def run(source: Source, table: Table, setting: Setting) -> Taken:
    """Send all rows of a source.

    :raises RuntimeError: a request was not acknowledged.
    """
    bounds = [source.rows * part // setting.processes for part in range(setting.processes + 1)]
    clients = [
        _start(source, table, setting, first, last) for first, last in itertools.pairwise(bounds)
    ]
    try:
        for client in clients:
            _expect_ready(client)
        for client in clients:
            _stdin(client).write("go\n")
            _stdin(client).flush()
        sent = [_sent(client) for client in clients]
    finally:
        for client in clients:
            client.kill()
            client.wait()
    seconds = max(one.ended_s for one in sent) - min(one.began_s for one in sent)
    return Taken(seconds, sum(one.cpu_s for one in sent), str(setting))


Client = subprocess.Popen[str]


def _start(source: Source, table: Table, setting: Setting, first: int, last: int) -> Client:
    server = table.server
    share = Share(
        host=server.host,
        port=server.port,
        insert=f"{table.insert} USING TIMESTAMP ?",
        source=source,
        first=first,
        last=last,
        per_batch=setting.per_batch,
        in_flight=setting.in_flight,
    )
    module = "tests.benchmarks.contenders.raw_client"
    arguments = [sys.executable, "-m", module, msgspec.json.encode(share).decode()]
    pipe = subprocess.PIPE
    return subprocess.Popen(arguments, stdin=pipe, stdout=pipe, text=True, cwd=ROOT)


def _expect_ready(client: Client) -> None:
    assert client.stdout is not None
    if client.stdout.readline() != "ready\n":
        raise RuntimeError("a process of the server's limit could not begin; see above")


def _sent(client: Client) -> Sent:
    printed, _ = client.communicate()
    if client.returncode:
        raise RuntimeError("a request was not acknowledged; see above")
    return msgspec.json.decode(printed, type=Sent)


def _stdin(client: Client) -> IO[str]:
    assert client.stdin is not None
    return client.stdin
