"""A server of any kind, wherever it runs: started until it answers, stopped, killed, paused, ended."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import ClassVar, Self

from rich.console import Console

from wal_sink.errors import WalSinkError


class DidNotStart(WalSinkError):
    """The server did not come up; where it got that far, the text ends with the last lines of its log."""

    exit_code = 4


class AnyServer(ABC):
    """One server with durable data, for tests. One thread starts, stops and closes it.

    :param title: what messages call it, such as "Cassandra 5.0.9".
    :param host: where its port is reached.
    :param port: the same after each start.
    """

    did_not_start: ClassVar[type[DidNotStart]]
    """What `start` raises."""
    patience_s: ClassVar[float]
    """How long it may take until it answers."""

    def __init__(self, title: str, host: str, port: int) -> None:
        self.title = title
        self.host = host
        self.port = port

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether it is there, be it paused."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> Self:
        """Start the server unless it runs, and return when it answers; on a terminal a line says how it goes.

        :raises DidNotStart: it ended, or gave no answer within `patience_s`, or its port was taken while it
            was down. Each kind of server has an error of its own, `did_not_start`.
        """
        if self.running:
            return self
        try:
            self._launch()
            self._await_answer()
        except BaseException:
            self.kill()
            raise
        return self

    @abstractmethod
    def stop(self) -> None:
        """Shut the server down as an operator would; kill it if that takes over 30 seconds."""

    @abstractmethod
    def kill(self) -> None:
        """End it at once, as a crash does; what was acknowledged must survive."""

    @abstractmethod
    def pause(self) -> None:
        """Freeze it: connections stay open and nothing answers."""

    @abstractmethod
    def resume(self) -> None:
        """Go on after `pause`."""

    @abstractmethod
    def close(self) -> None:
        """End the server for good, and remove what is temporary of it."""

    @abstractmethod
    def _launch(self) -> None:
        """Start the server and return at once."""

    @abstractmethod
    def _printed(self) -> str:
        """Return what it printed since it was launched, or the end of that."""

    @abstractmethod
    def _unanswered(self) -> str | None:
        """Ask it something; return why there is no answer, empty if that is unknown; None: it answers."""

    @abstractmethod
    def _disconnect(self) -> None:
        """Close what this object keeps open to it; it is about to end."""

    def _require_running(self) -> None:
        if not self.running:
            raise RuntimeError(f"{self.title} is not running: call start().")

    def _await_answer(self) -> None:
        since_s = time.monotonic()
        with Console(stderr=True).status(f"{self.title} starts") as line:
            while (why := self._unanswered()) is not None:
                passed_s = time.monotonic() - since_s
                if not self.running or passed_s > self.patience_s:
                    raise self._no_answer(why)
                line.update(f"{self.title} starts: {passed_s:.0f} s")
                time.sleep(0.02)

    def _no_answer(self, why: str) -> DidNotStart:
        said = f": {why}" if why else ""
        how = f"gave no answer{said}" if self.running else "ended before it gave an answer"
        tail = "\n".join(self._printed().splitlines()[-40:])
        what = f"{self.title}, port {self.port}, {how}. Its log ends:\n{tail}"
        return self.did_not_start(what, "Look for the first error in the lines above.")
