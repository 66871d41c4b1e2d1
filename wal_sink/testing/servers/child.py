"""A server as a child process, which dies with the process that starts it: no Docker, no service."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

from wal_sink.testing import free_port
from wal_sink.testing.servers.any_server import AnyServer

HOST = "127.0.0.1"


class Child(AnyServer):
    """One server on 127.0.0.1 in a process of its own, with its data in a folder.

    :param name: a word for the folder and for the log in it.
    :param folder: where all of it lives; it is kept, and a later server goes on from it. None: a temporary
        one, removed by `close`.
    """

    host = HOST
    ports: ClassVar[int] = 1
    """How many ports it needs, one after the other."""
    ends_by: ClassVar[signal.Signals] = signal.SIGTERM
    """What an operator's way to end it sends."""

    def __init__(self, title: str, name: str, folder: Path | str | None = None) -> None:
        super().__init__(title, HOST, free_port.choose(HOST, self.ports))
        self._temporary = None
        if folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix=f"wal_sink-{name}-")
            folder = self._temporary.name
        self.folder = Path(folder).absolute()
        self.log = self.folder / "log" / f"{name}.log"  # what it prints, at all its starts
        self._process: subprocess.Popen[bytes] | None = None
        self._begin = 0  # where in the log the last start begins
        # The server dies with the thread that starts it, so this one lives as long as the object.
        self._starter = ThreadPoolExecutor(1, f"starter-{name}")

    @property
    def running(self) -> bool:
        """Whether the process is there, be it paused."""
        return self._process is not None and self._process.poll() is None

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
        """End the server for good, and remove its folder if that is a temporary one."""
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
        if not free_port.are_free(self.host, self.port, self.ports):
            last = self.port + self.ports - 1
            ports = f"Port {self.port}" + (f" or {last}" if last > self.port else "")
            what = f"{ports} was free before and is in use now."
            raise self.did_not_start(what, "Find out what listens there, or make a new server.")
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
            said = (done.stderr + done.stdout).strip()
            raise self.did_not_start(f"{what} failed: {said}", "See to what it says.")

    def _printed(self) -> str:
        return self.log.read_bytes()[self._begin :].decode(errors="replace")

    def _alive(self) -> subprocess.Popen[bytes]:
        self._require_running()
        assert self._process is not None
        return self._process
