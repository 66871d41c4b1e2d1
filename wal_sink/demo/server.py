"""Servers that tests and demo start, stop, kill and pause.

A `Child` is a child process, and needs neither Docker nor a service. The child dies with the process that
starts it. After a kill it can start again on the same port.
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
    """The server did not start. The text ends with the last lines of the server's log."""

    exit_code = 4


class AnyServer(ABC):
    """A server with durable data. Only one thread may start, stop and close the server.

    :param title: the name of the server in messages, such as "Cassandra 5.0.9".
    :param host: the host to which clients connect.
    :param port: the port to which clients connect, the same after each start.
    """

    patience_s: ClassVar[float]
    """Seconds after which a start without an answer fails."""

    def __init__(self, title: str, host: str, port: int) -> None:
        self.title = title
        self.host = host
        self.port = port

    @property
    @abstractmethod
    def running(self) -> bool:
        """Return True if the server has not ended. It may be paused."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> Self:
        """Start the server unless it runs, and wait until it answers. The terminal shows the elapsed time.

        :raises DidNotStart: the server ended or did not answer in time, or another process has its port.
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
    def kill(self) -> None:
        """End the server at once, as a crash does. Acknowledged writes must survive."""

    @abstractmethod
    def pause(self) -> None:
        """Stop the server from answering, while its connections stay open."""

    @abstractmethod
    def resume(self) -> None:
        """Let a paused server continue. Do nothing if the server has ended."""

    @abstractmethod
    def close(self) -> None:
        """End the server, and delete its temporary files."""

    @abstractmethod
    def _launch(self) -> None:
        """Start the server without waiting for it."""

    @abstractmethod
    def _printed(self) -> str:
        """Return the last output of the server since its start."""

    @abstractmethod
    def _unanswered(self) -> str | None:
        """Return None if the server answers a request; otherwise the reason, or an empty text if unknown."""

    @abstractmethod
    def _disconnect(self) -> None:
        """Close the connections of this object before the server ends."""

    def _require_running(self) -> None:
        if not self.running:
            raise RuntimeError(f"{self.title} is not running. Call start().")

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
        outcome = f"gave no answer{detail}" if self.running else "ended before it gave an answer"
        tail = "\n".join(self._printed().splitlines()[-40:])
        what = f"{self.title}, port {self.port}, {outcome}. Its log ends:\n{tail}"
        return DidNotStart(what, "Look for the first error in the lines above.")


def choose_port(host: str, count: int = 1) -> int:
    """Return a free port that is followed by `count - 1` more free ports.

    The ports are below the range from which the kernel takes the local ports of outgoing connections. In that
    range, a connection could take the server's port after a kill, and a driver could connect to itself.
    """
    while True:
        port = 20_000 + 2 * secrets.randbelow(6_000)
        if ports_are_free(host, port, count):
            return port


def ports_are_free(host: str, port: int, count: int = 1) -> bool:
    """Return True if `port` and the `count - 1` ports after it are free."""
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
    """A server on 127.0.0.1 in a child process, with its data in a folder.

    :param name: a part of the names of folder and log.
    :param folder: the folder of data and log. The folder is kept, so that a later server can use the data.
        None for a temporary folder, which `close` deletes.
    """

    host = HOST
    ports: ClassVar[int] = 1
    """The number of successive ports that the server needs."""
    shutdown_signal: ClassVar[signal.Signals] = signal.SIGTERM
    """The signal that shuts the server down normally."""

    def __init__(self, title: str, name: str, folder: Path | str | None = None) -> None:
        super().__init__(title, HOST, choose_port(HOST, self.ports))
        self._temporary = None
        if folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix=f"wal_sink-{name}-")
            folder = self._temporary.name
        self.folder = Path(folder).absolute()
        self.log = self.folder / "log" / f"{name}.log"
        """The file with the output of all starts."""
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        """The position in `log` at which the output of the last start begins, in bytes."""
        # A server dies with the thread that starts it, so this thread runs as long as the object.
        self._starter = ThreadPoolExecutor(1, f"starter-{name}")

    @property
    def running(self) -> bool:
        """Return True if the process has not ended. It may be paused."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._running_process().pid

    def stop(self) -> None:
        """Shut the server down by `shutdown_signal`; kill the process after 30 seconds."""
        self._disconnect()
        if self._process is not None:
            self.resume()  # a paused process would not handle the next signal
            self._process.send_signal(self.shutdown_signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(30)
        self.kill()

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process has ended."""
        self._disconnect()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Stop the process by SIGSTOP, and wait until all its threads have stopped."""
        process = self._running_process()
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        """Send SIGCONT. Do nothing if the process has ended."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End the server, and delete its folder if the folder is temporary."""
        if self._temporary is None:
            self.stop()
        else:
            self.kill()  # `kill` is seconds faster than `stop`, and the data is deleted anyway
            self._temporary.cleanup()
        self._starter.shutdown()

    @abstractmethod
    def _command(self) -> Sequence[object]:
        """Return the command of the server. Before the first start, make the server's data."""

    def _environment(self) -> Mapping[str, str] | None:
        """Return the environment of the process; None for the environment of this process."""
        return None

    def _launch(self) -> None:
        command = [str(part) for part in self._command()]
        if not ports_are_free(self.host, self.port, self.ports):
            last = self.port + self.ports - 1
            ports = f"Port {self.port}" + (f" or {last}" if last > self.port else "")
            what = f"{ports} was free before, and another process listens there now."
            raise DidNotStart(what, "End this process, or make a new server.")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self._process = self._starter.submit(
                subprocess.Popen,
                command,
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches only this process, which then stops the server
            ).result()

    def _run(self, command: Sequence[object], name: str) -> None:
        """Run a program that makes the server's data.

        :param name: the name of the program in the error.
        :raises DidNotStart: the program fails.
        """
        # `command` may contain `maven.java_command`, whose process dies with the thread that starts it.
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
            raise DidNotStart(f"{name} failed: {printed}", "Correct what its output names.")

    def _printed(self) -> str:
        return self.log.read_bytes()[self._log_start :].decode(errors="replace")

    def _running_process(self) -> subprocess.Popen[bytes]:
        self._require_running()
        assert self._process is not None
        return self._process
