"""PostgreSQL in the demo: a server and its standby, which tests also use; and the store of the demo.

The programs of the server are from an installed package, or from Maven Central.
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
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from pyspark.sql import Row

from wal_sink.demo import maven
from wal_sink.demo.pauses import Pausing
from wal_sink.demo.queries import CONTROL, Query
from wal_sink.demo.server import Child, DidNotStart
from wal_sink.demo.stores import RowStore
from wal_sink.errors import WalSinkError
from wal_sink.targets.postgresql import PostgresqlTarget

USER = "postgres"
"""The superuser of every server."""
DATABASE = "postgres"
"""A database that every server has."""


FOLDERS = "/usr/lib/postgresql/*/bin"
"""The folders of the programs in Debian's packages. The highest version is used."""
_UNPRIVILEGED = ("postgres", "nobody")
"""The users for a server that root starts. The first user that exists is used."""


class PostgresqlNotInstalled(WalSinkError):
    """The machine has no programs of PostgreSQL that can run."""

    exit_code = 2


class Server(Child):
    """A PostgreSQL server on 127.0.0.1, with durable data in a temporary folder. No service is needed.

    Any thread may call `execute`. PostgreSQL refuses to run as root, so a server that root starts runs as
    `postgres` or `nobody`. The server dies with this process, also at a SIGKILL.

    :param settings: entries of postgresql.conf, which override the defaults of this class.
    :param folder: the folder with the programs; None for the folder that `programs` returns.
    :raises PostgresqlNotInstalled: the machine has no programs of PostgreSQL.
    """

    patience_s = 60.0
    shutdown_signal = signal.SIGINT  # PostgreSQL's "fast" shutdown

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
        """The URI of the database, with user and password, for libpq."""
        return self.uri_of(USER, self.password)

    def uri_of(self, user: str, password: str = "", database: str = DATABASE) -> str:
        """Return the URI of a database for a user."""
        login = f"{quote(user)}:{quote(password)}" if password else quote(user)
        return f"postgresql://{login}@{self.host}:{self.port}/{quote(database)}"

    def execute(self, sql: str, parameters: Sequence[object] | None = None) -> list[Any]:
        """Run statements, each in its own transaction, and return the rows of the last statement.

        :param parameters: the values for each `%s` of a single statement.
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

        # A statement that the driver prepares would fail after the columns of its table have changed.
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
        """The data folder, which the first start makes."""
        return self.folder / "data"

    def kill(self) -> None:
        """End all processes of the server by SIGQUIT, at which PostgreSQL exits as in a crash."""
        self._disconnect()
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self.resume()  # a paused process handles the signal after it
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(30)
        super().kill()

    def pause(self) -> None:
        """Stop all processes of the server by SIGSTOP."""
        super().pause()  # the server is stopped first, so that it starts no child meanwhile
        self._signal_children(signal.SIGSTOP)

    def resume(self) -> None:
        """Let all processes of the server continue."""
        super().resume()
        self._signal_children(signal.SIGCONT)

    def _signal_children(self, number: signal.Signals) -> None:
        """Send a signal to the processes that the server has started."""
        for child in _children(self._process.pid) if self._process is not None else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)

    def _command(self) -> Sequence[object]:
        if not self.data.exists():
            self._make_data()
        settings = [f"{name}={value}" for name, value in self._settings.items()]
        options = [part for setting in settings for part in ("-c", setting)]
        return unprivileged([self._programs / "postgres", "-D", self.data, *options], tied=True)

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
            *("--no-sync", "--no-instructions"),  # a power loss may take the folder
        ]
        self._run(unprivileged(command), f"initdb of {self.title}")
        password.unlink()


REPLICATES = {"wal_level": "replica", "max_wal_senders": 4, "hot_standby": "on"}
"""Settings of a server with a `Standby`."""


class Standby(Server):
    """A standby server, which replicates a primary server, by default asynchronously.

    :param primary: a running server with the settings `REPLICATES`.
    """

    def __init__(self, primary: Server, settings: Mapping[str, object] = {}) -> None:
        super().__init__({**REPLICATES, **settings})
        self._primary = primary
        self.password = primary.password

    @property
    def uri_of_both(self) -> str:
        """The URI with both servers. libpq connects to the server that accepts writes."""
        both = f"{self._primary.host}:{self._primary.port},{self.host}:{self.port}"
        uri = self._primary.uri.replace(f"{self._primary.host}:{self._primary.port}", both)
        return f"{uri}?target_session_attrs=read-write"

    def await_caught_up(self) -> None:
        """Wait until the standby has replayed all that the primary has written.

        :raises DidNotStart: the standby lags after `patience_s`.
        """
        self._await_standbys(1, "replay_lsn = pg_current_wal_lsn()", "does not catch up")

    def cut_off(self) -> None:
        """Stop the replication, as if the network between both servers failed.

        :raises DidNotStart: the standby still receives after `patience_s`.
        """
        self.execute("ALTER SYSTEM SET primary_conninfo = ''")
        self.execute("SELECT pg_reload_conf()")
        self._await_standbys(0, "true", "still receives from the primary")

    def _await_standbys(self, number: int, condition: str, problem: str) -> None:
        """Wait until a SQL condition is true for this number of standbys of the primary."""
        count = f"SELECT count(*) FROM pg_stat_replication WHERE {condition}"  # noqa: S608
        deadline = time.monotonic() + self.patience_s
        while self._primary.execute(count) != [(number,)]:
            if time.monotonic() > deadline:
                raise DidNotStart(f"The standby {problem}.", f"Read its log {self.log}.")
            time.sleep(0.05)

    def promote(self) -> None:
        """Make the standby accept writes."""
        self.execute("SELECT pg_promote()")

    def _make_data(self) -> None:
        """Stop the primary and copy its data, since some packages lack `pg_basebackup`."""
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
    """Return the folder with `postgres` and `initdb`: from PATH, from Debian's folders, or downloaded.

    :raises PostgresqlNotInstalled: the programs are not installed and cannot be downloaded.
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
"""The name of the build in Maven Central, by the machine's architecture."""


def downloaded_programs() -> Path:
    """Return the folder with the programs from Maven Central. The first call downloads 15 MB.

    The folder is in the user's cache. For root it is in /var/cache, where the user of the server can read it.

    :raises PostgresqlNotInstalled: Maven has no programs for this machine, or the download fails.
    """
    build = _BUILDS.get(platform.machine())
    if build is None:
        raise PostgresqlNotInstalled(
            f"PostgreSQL is not installed: no program `postgres` is on PATH or in {FOLDERS}. Maven Central"
            f" has no programs for {platform.machine()} either.",
            "Install PostgreSQL's server. Its service need not run.",
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
        maven.made_once(folder, partial(_unpack, next(jars.glob("*.jar"))))
    return folder / "bin"


def _unpack(jar: Path, work: Path) -> Path:
    """Unpack the archive in a jar; return the folder of the programs."""
    unpacked = work / "programs"
    unpacked.mkdir(mode=0o755)
    with zipfile.ZipFile(jar) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".txz"))
        with archive.open(name) as packed, tarfile.open(fileobj=packed, mode="r|xz") as files:
            files.extractall(unpacked, filter="data")
    return unpacked


def version(folder: Path) -> str:
    """Return the version of the programs in a folder, such as "15.18"."""
    answer = subprocess.run(  # noqa: S603 - a program of `programs`
        [folder / "postgres", "--version"], capture_output=True, text=True, check=True
    )
    return answer.stdout.split()[2]


def _user() -> pwd.struct_passwd | None:
    """Return the user of the server, if this process is root; otherwise None."""
    if os.geteuid() != 0:
        return None
    for name in _UNPRIVILEGED:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise PostgresqlNotInstalled(
        "PostgreSQL does not run as root, and this machine has none of the users"
        f" {', '.join(_UNPRIVILEGED)}.",
        "Run the command as another user, or create one of these users.",
    )


def unprivileged(command: Sequence[object], *, tied: bool = False) -> Sequence[object]:
    """Return a command that runs `command` as the user of the server.

    :param tied: True if the process must die with the thread that starts it.
    """
    user = _user()
    options = []
    if user is not None:
        options += [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--init-groups"]
    if tied:
        options += ["--pdeathsig", "QUIT"]
    return ["setpriv", *options, "--", *command] if options else command


def _children(parent: int) -> list[int]:
    """Return the ids of the child processes of a process; none if the process has ended."""
    try:
        listed = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return []
    return [int(pid) for pid in listed.split()]


class PausingPostgresql(Pausing, PostgresqlTarget):
    """PostgreSQL with pauses."""


class Postgresql(RowStore):
    """PostgreSQL as a store. The tables have no key, so a row that is written twice is two rows."""

    target = "postgresql"

    @classmethod
    @contextmanager
    def start(cls, folder: Path, notify: Callable[[str], None]) -> Iterator[Self]:  # noqa: ARG003 - temporary
        """Start a server."""
        server = Server({"timezone": "UTC"})
        notify(f"Starting {server.title} …")
        with server:
            yield cls(server.uri, server)

    def create(self) -> None:
        """Make the table of the control."""
        self.server.execute(
            f"CREATE TABLE {CONTROL.table} (key text, origin text, day date, scheduled timestamptz,"
            " carrier text, flight int)"
        )

    def options(self, table: str) -> Mapping[str, str]:
        """Return the options of the sink for a table."""
        return {
            "postgresql.uri": self.address,
            "table": table,
            "createTable": "true",
        }

    def insert(self, table: str, rows: Iterable[Row]) -> None:
        """Copy the rows in a transaction, which the database rolls back if the task is killed."""
        import psycopg  # noqa: PLC0415 - in tasks only

        statement = f"COPY {table} (key, origin, day, scheduled, carrier, flight) FROM STDIN"
        with (
            psycopg.connect(self.address) as connection,
            connection.cursor() as cursor,
            cursor.copy(statement) as copy,
        ):
            for row in rows:
                copy.write_row(row)

    def count(self, table: str) -> int:
        """Count the rows of a table."""
        if self.server.execute("SELECT to_regclass(%s)", [table]) == [(None,)]:
            return 0
        ((rows,),) = self.server.execute(f"SELECT count(*) FROM {table}")  # noqa: S608
        return int(rows)

    def rows(self, query: Query) -> Iterable[Sequence[Any]]:
        """Return the rows of the query's table."""
        select = f"SELECT {', '.join(query.columns)} FROM {query.table}"  # noqa: S608
        rows: Iterable[Sequence[Any]] = self.server.execute(select)
        return rows
