"""Opens connections that are safe to flush over, bounds how long they wait, and tells what errors mean."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from typing import Any

import msgspec
import psycopg
from psycopg import conninfo, errors

from wal_sink.errors import OptionError, TargetUnavailable
from wal_sink.targets.base import Kind
from wal_sink.targets.postgresql.options import PASSWORD_VARIABLE, PostgresqlOptions

# For what the URI does not say. A host that is gone is noticed after half a minute; one that is there and
# whose server keeps silent, by `WatchedConnection`.
DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "application_name": "wal_sink",
}

# Of a session, whatever the role's or the database's defaults are. An acknowledged COMMIT has to survive a
# crash, as the log is trimmed after it: what is weaker than on this server's disk is made `on`.
_SETTINGS = """
    SELECT set_config('TimeZone', 'UTC', false),
           set_config('default_transaction_isolation', 'read committed', false),
           set_config('default_transaction_read_only', 'off', false),
           set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                      WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false),
           set_config('statement_timeout', '0', false),
           set_config('lock_timeout', %s, false),
           set_config('idle_in_transaction_session_timeout', %s, false)"""

_PASSING = ("08", "40", "53", "55", "57", "58")
"""Classes of SQLSTATE whose errors may pass by themselves: connection, serialization and deadlock, resources,
locks, an operator's shutdown or cancel, the system."""
_PASSING_STATES = (errors.IdleInTransactionSessionTimeout, errors.ReadOnlySqlTransaction)


class WatchedConnection(psycopg.Connection[Any]):
    """A connection that is cut when the server keeps silent for too long.

    libpq bounds how long a *host* may be silent, not a server that stands still on a host that answers.
    """

    request_timeout: float = 120.0
    _silent_since: float | None = None
    _watching: threading.Event | None = None

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        """Wait for the server, as the driver does; all of its methods call this."""
        self._silent_since = time.monotonic()
        try:
            return super().wait(*args, **kwargs)
        finally:
            self._silent_since = None

    def watch(self, request_timeout: float) -> None:
        """Cut the connection once a single wait takes longer than this, in seconds; until `close`."""
        self.request_timeout = request_timeout
        self._watching = ended = threading.Event()
        threading.Thread(
            target=self._watch, args=(ended,), name="postgresql-watch", daemon=True
        ).start()

    def close(self) -> None:
        """Disconnect; the server rolls back what is open."""
        if self._watching is not None:
            self._watching.set()
        super().close()

    def _watch(self, ended: threading.Event) -> None:
        while not ended.wait(min(1.0, self.request_timeout / 4)):
            since = self._silent_since
            if since is not None and time.monotonic() - since > self.request_timeout:
                self._cut()

    def _cut(self) -> None:
        """End the connection below the driver, which then raises in the thread that waits."""
        with (
            contextlib.suppress(OSError, psycopg.Error),
            socket.socket(fileno=os.dup(self.pgconn.socket)) as same,
        ):
            same.shutdown(socket.SHUT_RDWR)


def connect(options: PostgresqlOptions) -> WatchedConnection:
    """Connect to the server that takes writes.

    The password is that of the options, or else that of the environment now.

    :raises OptionError: libpq does not know a parameter of the URI; the server refuses the login, or has no
        such database.
    :raises TargetUnavailable: the server is a replica.
    :raises psycopg.Error: it does not answer, or refuses.
    """
    try:
        connection = WatchedConnection.connect(**_parameters(options), prepare_threshold=None)
    except psycopg.OperationalError as error:
        if (wrong := wrong_option(str(error), options)) is not None:
            raise wrong from error
        raise
    try:
        connection.watch(options.request_timeout)
        if connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,):
            raise TargetUnavailable(
                f"The server at {options.uri} is a replica, which takes no rows.",
                "Name the primary in postgresql.uri, or all hosts and target_session_attrs=read-write.",
            )
        connection.execute(
            _SETTINGS,
            (f"{options.lock_timeout * 1000:.0f}", f"{options.idle_timeout * 1000:.0f}"),
        )
        connection.commit()
    except BaseException:
        connection.close()
        raise
    return connection


def with_password(options: PostgresqlOptions) -> PostgresqlOptions:
    """Fill in the password from this process's environment, unless an option gives it."""
    found = os.environ.get(PASSWORD_VARIABLE, "")
    return msgspec.structs.replace(options, password=options.password or found)


def classify(error: Exception) -> Kind:
    """Return what an exception of the driver means."""
    if isinstance(error, TargetUnavailable):
        return "retry"
    if not isinstance(error, psycopg.Error):
        return "fatal"
    if isinstance(error, _PASSING_STATES):
        return "retry"
    if error.sqlstate is None:  # not the server's answer: the connection is lost, or never was
        passing = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        return "retry" if passing else "fatal"
    return "retry" if error.sqlstate.startswith(_PASSING) else "fatal"


def wrong_option(said: str, options: PostgresqlOptions) -> OptionError | None:
    """Return what is wrong with user, password or database; None: it is not these.

    libpq has no SQLSTATE of a connection that was refused, so its text decides. A server that speaks another
    language is not understood, and its text is shown as that of any other error.
    """
    answer = " ".join(said.split()).rpartition("FATAL: ")[2]
    uri = options.uri
    if re.search(
        r"no password supplied|password authentication failed|role .* (exist|log in)", answer
    ):
        return OptionError(
            f"The server of postgresql.uri {uri} refuses the login: {answer}",
            f"Correct the user in postgresql.uri, or the password: postgresql.password, or"
            f" {PASSWORD_VARIABLE} where it comes from there: the environment is read again at each try.",
        )
    if re.search(r"database .* does not exist", answer):
        return OptionError(
            f"The server of postgresql.uri {uri} has no such database: {answer}",
            "Correct the database, which is the last part of postgresql.uri, or create it.",
        )
    return None


def _parameters(options: PostgresqlOptions) -> dict[str, Any]:
    try:
        given = conninfo.conninfo_to_dict(options.uri)
    except psycopg.ProgrammingError as error:
        raise OptionError(
            f"Option postgresql.uri: {str(error).strip()}.",
            "Correct it; PostgreSQL's documentation lists the parameters of a connection string.",
        ) from error
    password = with_password(options).password
    return {
        **DEFAULTS,
        **given,
        **({"password": password} if password else {}),
        "client_encoding": "UTF8",
    }
