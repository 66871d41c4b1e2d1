"""SIGKILL of the server, of the client and of both: each row of a query with `uuid()` is written once."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from state_backends import open_backend
from tests.cli.shell import WAL_SINK
from tests.connect.app import KIND, ROOT, Shop, environment
from tests.support.programs import ran
from tests.support.waiting import until
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.demo.local_spark import ConnectServer, Driver
from wal_sink.demo.pauses import Pause, Point

pytestmark = [pytest.mark.spark, pytest.mark.connect, pytest.mark.timeout(600)]

FILES = 4


class Killed:
    """A shop, and the servers and clients that a test starts and kills."""

    def __init__(self, folder: Path) -> None:
        self.shop = Shop(folder, FILES)
        self._starts = itertools.count()

    def server(
        self,
        point: Point | None = None,
        epoch: int = -1,
        settings: Mapping[str, str] | None = None,
    ) -> ConnectServer:
        """Start a server; its query pauses at a point of an epoch."""
        marker = str(self.shop.folder / f"marker-{next(self._starts)}")
        where = (
            ()
            if point is None
            else (Pause(point=point, table="orders", epoch=epoch, marker=marker),)
        )
        self.marker = Path(marker)
        return ConnectServer(self.shop.folder, *where, settings=settings, environment=environment())

    def client(self, server: ConnectServer, **more: object) -> Driver:
        """Start a client of a server."""
        config = self.shop.config(server.url, **more)
        output = self.shop.folder / f"client-{next(self._starts)}.log"
        return Driver(["-m", "tests.connect.app", str(config)], output, environment(), folder=ROOT)

    def last_commit(self) -> int:
        """Return the last epoch that Spark has completed."""
        return Checkpoint(open_backend(self.shop.checkpoint)).last_commit()

    def flush(self) -> None:
        """Flush what is checkpointed by `wal-sink flush`."""
        done = ran(
            [WAL_SINK, "flush", self.shop.checkpoint, "--option", f"target={KIND}"],
            env={**os.environ, **environment()},
        )
        assert done.returncode == 0, done.stderr

    def committed_ids(self) -> list[int]:
        """Return the ids of the rows that are checkpointed."""
        return list(range((self.last_commit() + 1) * 400))


@pytest.fixture
def killed(tmp_path: Path) -> Killed:
    """Return a shop whose server and client are killed."""
    return Killed(tmp_path)


def test_server_killed_in_each_window_loses_nothing(killed: Killed, server: ConnectServer) -> None:
    """The windows are: in a task, before the manifest, and between manifest and `commits/1`.

    One of the kills is also of the client. At last only the client is killed, and the query runs to its end.
    """
    points: tuple[Point, ...] = ("write", "commit called", "commit returned")
    for point in points:
        with killed.server(point, 1) as paused, killed.client(paused) as client:
            paused.reach(killed.marker.exists)
            if point == "commit called":
                client.kill()
            paused.kill()  # Spark's client tries to connect for some minutes
        killed.flush()
        assert killed.shop.ids() == killed.committed_ids() == list(range(400))
    with killed.client(server) as client:
        client.reach(lambda: killed.last_commit() >= 1)
        client.kill()
    until(lambda: killed.last_commit() == FILES - 1, 120)
    killed.flush()
    assert killed.shop.ids() == list(range(killed.shop.rows))


@pytest.mark.test_all
def test_session_timeout_loses_no_row(killed: Killed) -> None:
    """The server ends the session of a stalled client, and its query. The next query continues."""
    settings = {
        "spark.connect.session.manager.defaultSessionTimeout": "5s",
        "spark.connect.session.manager.maintenanceInterval": "1s",
    }
    with killed.server(settings=settings) as server:
        with killed.client(server) as client:
            client.reach(lambda: killed.last_commit() >= 0)
            os.killpg(client.process.pid, signal.SIGSTOP)
            closed = "Found session SessionHolderInfo"
            until(lambda: closed in server.log() or killed.last_commit() == FILES - 1, 120)
        with killed.client(server, follow=True) as client:
            client.finish()
    assert killed.shop.ids() == list(range(killed.shop.rows))
