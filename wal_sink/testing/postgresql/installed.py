"""Runs a private PostgreSQL server from the installed package, for tests and demonstrations: no service."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from wal_sink.errors import WalSinkError
from wal_sink.testing import free_port
from wal_sink.testing.postgresql.server import USER, PostgresqlDidNotStart, Server

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDERS = "/usr/lib/postgresql/*/bin"
"""Where Debian's packages put their programs, beside PATH; the highest version counts."""
_UNPRIVILEGED = ("postgres", "nobody")
"""Users of which the first that exists runs the server where this process is root."""


class PostgresqlNotInstalled(WalSinkError):
    """There are no programs of PostgreSQL on this machine, or none that can be run."""

    exit_code = 2


class InstalledPostgresql(Server):
    """One PostgreSQL server on 127.0.0.1, in processes of its own, with durable data in a temporary folder.

    PostgreSQL refuses to run as root; where this process does, the server runs as `postgres`, or as `nobody`.
    On Linux it dies with this process, however that one ends.

    :param settings: entries of postgresql.conf; they override the choices made here.
    :raises PostgresqlNotInstalled: there are no programs.
    """

    host = "127.0.0.1"

    def __init__(self, settings: Mapping[str, object] = {}) -> None:
        self._programs = programs()
        super().__init__(
            f"PostgreSQL {version(self._programs)}", self.host, free_port.choose(self.host)
        )
        self._temporary = tempfile.TemporaryDirectory(prefix="wal_sink-postgresql-")
        self.folder = Path(self._temporary.name)
        self.log = self.folder / "postgresql.log"  # what it prints, at all its starts
        self._settings = {
            "listen_addresses": self.host,
            "port": self.port,
            "unix_socket_directories": "",
            "fsync": "on",
            "log_line_prefix": "%m [%p] ",
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._begin = 0  # where in the log the last start begins
        # The server dies with the thread that starts it, so this one lives as long as the object.
        self._starter = ThreadPoolExecutor(1, "installed-postgresql")

    @property
    def data(self) -> Path:
        """The data folder; it is there after the first start."""
        return self.folder / "data"

    @property
    def running(self) -> bool:
        """Whether the first process is there, be it paused."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Shut the server down as an operator would, by its "fast" way; kill it if that takes over 30 s."""
        self._disconnect()
        if self._process is not None and self.running:
            self._signal(signal.SIGCONT)  # a paused one would not see the next signal
            self._process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(30)
        self.kill()

    def kill(self) -> None:
        """End all processes at once, as a crash of the machine does."""
        if self._process is not None and self.running:
            self._process.send_signal(signal.SIGSTOP)  # it starts no more processes
            killed = self._signal(signal.SIGKILL)
            self._process.wait()
            while any(_is_there(pid) for pid in killed):  # they hold on to the shared memory
                time.sleep(0.005)
        self._disconnect()

    def pause(self) -> None:
        """Freeze all processes: connections stay open and nothing answers."""
        if not self.running:
            raise RuntimeError(f"{self.title} is not running: call start().")
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)  # first: it starts no more processes
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Go on after `pause`."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End the server for good, and remove its folder."""
        self.kill()  # faster, and nothing remains that should be in order
        self._temporary.cleanup()
        self._starter.shutdown()

    def _signal(self, number: signal.Signals) -> list[int]:
        """Send a signal to the first process and to those that it has started; return these."""
        assert self._process is not None
        children = _children(self._process.pid)
        self._process.send_signal(number)
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)
        return children

    def _launch(self) -> None:
        if not self.data.exists():
            self._make_data()
        if not free_port.are_free(self.host, self.port):
            what = f"Port {self.port} was free before and is in use now."
            raise PostgresqlDidNotStart(what, "Find out what listens there, or make a new server.")
        settings = [f"{name}={value}" for name, value in self._settings.items()]
        command = [self._programs / "postgres", "-D", self.data]
        command += [part for each in settings for part in ("-c", each)]
        with self.log.open("ab") as log:
            self._begin = log.tell()
            self._process = self._starter.submit(
                subprocess.Popen,
                _unprivileged([str(part) for part in command], tied=True),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the tests, which then stop the server
            ).result()

    def _make_data(self) -> None:
        password = self.folder / "password"
        password.write_text(self.password)
        password.chmod(0o600)
        if (user := _user()) is not None:
            for path in (self.folder, password):
                os.chown(path, user.pw_uid, user.pw_gid)
        command = [
            *(str(self._programs / "initdb"), "--pgdata", str(self.data), "--username", USER),
            *("--auth=scram-sha-256", f"--pwfile={password}", "--encoding=UTF8", "--locale=C"),
            *("--no-sync", "--no-instructions"),  # nothing is kept that a power loss could take
        ]
        done = subprocess.run(  # noqa: S603 - the programs that were found
            _unprivileged(command), capture_output=True, text=True, check=False, cwd=self.folder
        )
        password.unlink()
        if done.returncode:
            raise PostgresqlDidNotStart(
                f"initdb of {self.title} failed: {done.stderr.strip()}", "See to what it says."
            )

    def _printed(self) -> str:
        return self.log.read_bytes()[self._begin :].decode(errors="replace")


def programs() -> Path:
    """Find the folder with the programs `postgres` and `initdb`: on PATH, or else where Debian has them.

    :raises PostgresqlNotInstalled: they are nowhere.
    """
    on_path = shutil.which("postgres")
    if on_path and shutil.which("initdb"):
        return Path(on_path).resolve().parent
    root, pattern = Path("/"), FOLDERS.removeprefix("/")
    found = [folder for folder in root.glob(pattern) if (folder / "initdb").exists()]
    if not found:
        raise PostgresqlNotInstalled(
            f"PostgreSQL is not installed: no program `postgres` on PATH or in {FOLDERS}",
            "Install the server: on Debian and Ubuntu `apt-get install postgresql`. Its service is not used.",
        )
    return max(found, key=lambda folder: int(re.sub(r"\D", "", folder.parent.name) or 0))


def version(folder: Path) -> str:
    """Return the version of the programs in a folder, such as "15.18"."""
    told = subprocess.run(  # noqa: S603 - the programs that were found
        [folder / "postgres", "--version"], capture_output=True, text=True, check=True
    )
    return told.stdout.split()[2]


def _user() -> pwd.struct_passwd | None:
    """Return the user that the server runs as; None: the one of this process."""
    if os.geteuid() != 0:
        return None
    for name in _UNPRIVILEGED:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise PostgresqlNotInstalled(
        f"PostgreSQL does not run as root, and there is no user {' or '.join(_UNPRIVILEGED)}",
        "Run as another user, or create one of these.",
    )


def _unprivileged(command: list[str], *, tied: bool = False) -> list[str]:
    """Return what runs a command as `_user`.

    :param tied: on Linux, the process dies with the thread that starts it.
    """
    user = _user()
    options = []
    if user is not None:
        options += [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--init-groups"]
    if tied and sys.platform == "linux":
        options += ["--pdeathsig", "QUIT"]
    return ["setpriv", *options, "--", *command] if options else command


def _children(parent: int) -> list[int]:
    """Return the processes that a process has started."""
    listed = Path(f"/proc/{parent}/task/{parent}/children")
    if listed.exists():
        return [int(pid) for pid in listed.read_text().split()]
    told = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="],  # noqa: S607 - of the system
        capture_output=True,
        text=True,
        check=True,
    )
    pairs = [line.split() for line in told.stdout.splitlines()]
    return [int(pid) for pid, ppid in pairs if int(ppid) == parent]


def _is_there(pid: int) -> bool:
    """Whether a process still holds memory; one that only waits for its parent to ask does not."""
    try:
        os.kill(pid, 0)
        return not _is_zombie(pid)
    except (ProcessLookupError, FileNotFoundError):
        return False


def _is_zombie(pid: int) -> bool:
    if not Path("/proc/self/stat").exists():
        return False
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "Z"
