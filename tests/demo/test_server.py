"""A server that ends before it is stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from tests.support.waiting import until
from wal_sink.demo.server import Child


class Sleeper(Child):
    """A process that counts as a server, and ends at SIGTERM."""

    patience_s = 30.0

    def __init__(self) -> None:
        super().__init__("Sleeper", "sleeper")

    def _command(self) -> Sequence[object]:
        return ["sleep", "600"]

    def _disconnect(self) -> None:
        """Do nothing: there are no connections."""

    def _unanswered(self) -> str | None:
        return None


def test_stop_and_resume_accept_a_server_that_ended() -> None:
    server = Sleeper().start()
    os.kill(server.pid, signal.SIGKILL)
    until(lambda: not server.running)
    server.resume()
    server.stop()
    server.close()
