"""A server of any kind: started until it answers, stopped, killed, paused, ended.

`Child` needs neither Docker nor a service, and dies with the process that starts it. Ports are chosen so
that a server can come back on its port after it was killed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
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

    patience_s: ClassVar[float]
    """How long it may take until it answers."""

    def __init__(self, title: str, host: str, port: int) -> None:
        self.title = title
        self.host = host
        self.port = port

    @property
    @abstractmethod
    def running(self) -> bool:
        """Return True if it is there, also if it is paused."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> Self:
        """Start the server unless it runs, and return when it answers; on a terminal a line says how it goes.

        :raises DidNotStart: it ended, or gave no answer within `patience_s`, or its port was taken while it
            was down.
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
        """End the server, and remove what is temporary of it."""

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
            while (reason := self._unanswered()) is not None:
                passed_s = time.monotonic() - since_s
                if not self.running or passed_s > self.patience_s:
                    raise self._no_answer(reason)
                line.update(f"{self.title} starts: {passed_s:.0f} s")
                time.sleep(0.02)

    def _no_answer(self, reason: str) -> DidNotStart:
        detail = f": {reason}" if reason else ""
        how = f"gave no answer{detail}" if self.running else "ended before it gave an answer"
        tail = "\n".join(self._printed().splitlines()[-40:])
        what = f"{self.title}, port {self.port}, {how}. Its log ends:\n{tail}"
        return DidNotStart(what, "Look for the first error in the lines above.")


def choose(host: str, count: int = 1) -> int:
    """Choose the first of `count` neighbouring ports that still are free when the node comes back.

    Those that the kernel would choose are not: it gives them to outgoing connections as well, even
    to a driver that knocks at the very port and then is connected to itself.
    """
    while True:
        port = 20_000 + 2 * secrets.randbelow(6_000)  # below where the kernel chooses from
        if are_free(host, port, count):
            return port


def are_free(host: str, port: int, count: int = 1) -> bool:
    """Return True if `count` ports are free from `port` on."""
    try:
        for number in range(port, port + count):
            socket.create_server((host, number)).close()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True


HOST = "127.0.0.1"


class Child(AnyServer):
    """One server on 127.0.0.1 in a process of its own, with its data in a folder.

    :param name: a word for the folder and for the log in it.
    :param folder: where all of it lies; it is kept, and a later server goes on from it. None: a temporary
        one, removed by `close`.
    """

    host = HOST
    ports: ClassVar[int] = 1
    """How many ports it needs, one after the other."""
    ends_by: ClassVar[signal.Signals] = signal.SIGTERM
    """What an operator's way to end it sends."""

    def __init__(self, title: str, name: str, folder: Path | str | None = None) -> None:
        super().__init__(title, HOST, choose(HOST, self.ports))
        self._temporary = None
        if folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix=f"wal_sink-{name}-")
            folder = self._temporary.name
        self.folder = Path(folder).absolute()
        self.log = self.folder / "log" / f"{name}.log"  # what it prints, at all its starts
        self._process: subprocess.Popen[bytes] | None = None
        self._begin = 0  # where in the log the last start begins
        # The server dies with the thread that starts it, so this one runs as long as the object.
        self._starter = ThreadPoolExecutor(1, f"starter-{name}")

    @property
    def running(self) -> bool:
        """Return True if the process is there, also if it is paused."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process."""
        return self._alive().pid

    def stop(self) -> None:
        """Shut the server down as an operator would; kill it if that takes over 30 seconds."""
        self._disconnect()
        if self._process is not None and self.running:
            self.resume()  # a paused one would not see the next signal
            self._process.send_signal(self.ends_by)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(30)
        self.kill()

    def kill(self) -> None:
        """End the process at once, as a crash does; what was acknowledged must survive."""
        self._disconnect()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Freeze the process: connections stay open and nothing answers."""
        process = self._alive()
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)  # until its last thread stands

    def resume(self) -> None:
        """Go on after `pause`."""
        self._alive().send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End the server, and remove its folder if that is a temporary one."""
        if self._temporary is None:
            self.stop()
        else:
            self.kill()  # seconds faster, and nothing remains that should be in order
            self._temporary.cleanup()
        self._starter.shutdown()

    @abstractmethod
    def _command(self) -> Sequence[object]:
        """Return the command that runs the server; what it needs is made before the first start."""

    def _environment(self) -> Mapping[str, str] | None:
        """Return the environment of the process; None: that of this one."""
        return None

    def _launch(self) -> None:
        command = [str(part) for part in self._command()]
        if not are_free(self.host, self.port, self.ports):
            last = self.port + self.ports - 1
            ports = f"Port {self.port}" + (f" or {last}" if last > self.port else "")
            what = f"{ports} was free before and is in use now."
            raise DidNotStart(what, "Find out what listens there, or make a new server.")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._begin = log.tell()
            self._process = self._starter.submit(
                subprocess.Popen,
                command,
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the tests, which then stop the server
            ).result()

    def _run(self, command: Sequence[object], what: str) -> None:
        """Run a program that makes the server's data, to its end.

        :raises DidNotStart: it fails; `what` says what it is to do.
        """
        # In the starter: a command may be tied to the thread that runs it.
        done = self._starter.submit(
            subprocess.run,
            [str(part) for part in command],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            env=self._environment(),
        ).result()
        if done.returncode:
            printed = (done.stderr + done.stdout).strip()
            raise DidNotStart(f"{what} failed: {printed}", "Act on what it says.")

    def _printed(self) -> str:
        return self.log.read_bytes()[self._begin :].decode(errors="replace")

    def _alive(self) -> subprocess.Popen[bytes]:
        self._require_running()
        assert self._process is not None
        return self._process
