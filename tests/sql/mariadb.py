"""A private MariaDB server from Debian's package, for tests: no service, data in a temporary folder.

`WAL_SINK_MYSQLD` names the program `mysqld` of a MySQL: then the same tests ask that one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from wal_sink.testing.servers.process import Child

SMALL = ("--innodb-log-file-size=8M", "--innodb-buffer-pool-size=32M")
# A commit is written, and not synced: what a test kills is a process, and no machine loses its power.
NOT_SYNCED = "--innodb-flush-log-at-trx-commit=2"


class MariaDb(Child):
    """One server on 127.0.0.1, whose root has no password.

    :param settings: of the server, such as `--log-bin`.
    """

    patience_s = 60.0

    def __init__(self, *settings: str) -> None:
        super().__init__("MariaDB", "mariadb")
        self._settings = settings

    def url(self, database: str, parameters: str = "") -> str:
        """Return SQLAlchemy's URL of a database."""
        return f"mysql+pymysql://root@{self.host}:{self.port}/{database}{parameters}"

    def execute(self, sql: str, values: Sequence[object] = (), database: str = "") -> list[Any]:
        """Run a statement in a transaction of its own, and return its rows."""
        connection = self._connect(database)
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql, values or None)
                return list(cursor.fetchall())
        finally:
            connection.close()

    def _connect(self, database: str = "") -> Any:
        import pymysql  # noqa: PLC0415 -- the fixtures of a run without this server need no driver

        return pymysql.connect(
            host=self.host,
            port=self.port,
            user="root",
            database=database or None,
            autocommit=True,
            connect_timeout=10,
        )

    def _disconnect(self) -> None:
        """Nothing is kept open."""

    def _unanswered(self) -> str | None:
        import pymysql  # noqa: PLC0415 -- as above

        try:
            self._connect().close()
        except pymysql.err.OperationalError as error:
            return str(error)
        return None

    def _command(self) -> Sequence[object]:
        data = self.folder / "data"
        common = ("--no-defaults", "--user=root", f"--datadir={data}", *SMALL)
        if not data.exists():
            quiet = (
                "--skip-test-db",
                "--skip-name-resolve",
                "--auth-root-authentication-method=normal",
            )
            self._run([_program("mariadb-install-db"), *common, *quiet], "mariadb-install-db")
        return [
            *(_program("mariadbd"), *common, f"--port={self.port}", f"--bind-address={self.host}"),
            *(f"--socket={self.folder / 'socket'}", f"--pid-file={self.folder / 'pid'}"),
            *("--log-bin", "--server-id=1", "--binlog-format=MIXED", NOT_SYNCED),
            *self._settings,
        ]


class MySql(MariaDb):
    """The same of MySQL.

    :param program: its `mysqld`.
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


def _program(name: str) -> str:
    """Find a program; Debian has the server's beside PATH. Without it the test is skipped."""
    beside = Path("/usr/sbin") / name
    found = shutil.which(name) or (str(beside) if beside.exists() else None)
    if found is None:
        pytest.skip(f"no program {name}: MariaDB is not installed (Debian: mariadb-server)")
    return found


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDb]:
    """Start the one server of a run."""
    program = os.environ.get("WAL_SINK_MYSQLD")
    server = MySql(program) if program else MariaDb()
    with contextlib.closing(server), server:
        yield server


@pytest.fixture
def database(mariadb: MariaDb) -> Iterator[str]:
    """Return the name of a new database in `mariadb`, dropped after the test."""
    name = f"test_{uuid.uuid4().hex[:16]}"
    mariadb.execute(f"CREATE DATABASE {name}")
    yield name
    mariadb.execute(f"DROP DATABASE {name}")
