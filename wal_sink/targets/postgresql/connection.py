"""Connects to PostgreSQL, with time-outs and the settings of a session."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Generator
from typing import Any

import psycopg
from psycopg import conninfo

from wal_sink.errors import OptionError, TargetUnavailable
from wal_sink.options import VARIABLE_IS_READ
from wal_sink.targets.ddl import quote
from wal_sink.targets.postgresql.options import PASSWORD_VARIABLE, PostgresqlOptions

# The parameters that the URI does not set. TCP notices a lost host after half a minute. `BoundedConnection`
# notices a server that hangs on a host that answers.
DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "application_name": "wal_sink",
}

_SETTINGS = """
    SELECT set_config(s.name, wanted.setting, false)
    FROM (VALUES
        ('TimeZone', 'UTC'),
        ('default_transaction_isolation', 'read committed'),
        ('default_transaction_read_only', 'off'),
        ('row_security', 'off'), -- an error, where a policy would hide rows
        ('synchronous_commit', CASE current_setting('synchronous_commit')
            WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END),
        ('statement_timeout', '0'),
        ('transaction_timeout', '0'),
        ('lock_timeout', '{lock_ms}'),
        ('idle_in_transaction_session_timeout', '{idle_ms}')) AS wanted(name, setting)
    JOIN pg_catalog.pg_settings s USING (name)"""
"""Sets a session's settings, whatever the defaults of role and database are. The join leaves out settings
that the server lacks: `transaction_timeout` came with PostgreSQL 17. A `synchronous_commit` of `off`
becomes `on`: an acknowledged COMMIT has to survive a crash, as the log is trimmed after it."""


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that closes if the server does not answer for too long.

    libpq has time-outs for a host that does not answer, and none for a server that hangs on a host that
    answers.
    """

    request_timeout = 120.0
    """The longest wait for one answer, in seconds."""

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        """Wait for the server. All methods of the driver call this method."""
        return super().wait(self._bounded(gen), *args, **kwargs)

    def _bounded(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Yield what the driver waits for, and raise after the time-out.

        The driver resumes the generator every tenth of a second, even if the server has sent nothing.
        """
        end = time.monotonic() + self.request_timeout
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > end:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(
                        f"the server has not answered for {self.request_timeout:g} seconds"
                    )
                wanted = gen.send(ready)
        except StopIteration as done:
            return done.value


def connect(options: PostgresqlOptions) -> BoundedConnection:
    """Connect to the primary. If the options have no password, the environment variable is read now.

    :raises OptionError: an option or the login is wrong, the server lacks the database, or a pooler answers.
    :raises TargetUnavailable: the server is a replica.
    :raises psycopg.Error: the server does not answer, or refuses the connection for another reason.
    """
    try:
        connection = BoundedConnection.connect(**_parameters(options), prepare_threshold=None)
    except psycopg.OperationalError as error:
        if (wrong := wrong_option(str(error), options)) is not None:
            raise wrong from error
        raise
    connection.request_timeout = options.request_timeout
    try:
        ((backend,),) = connection.execute("SELECT pg_backend_pid()").fetchall()
        if backend != connection.info.backend_pid:  # the server named this one at the login
            raise OptionError(
                f"Option postgresql.uri {options.uri} leads to a pooler, such as PgBouncer, and not to the"
                " server: the settings of a session could be lost between its transactions.",
                "Name the server itself, by its own port. A flusher keeps one connection open, so a"
                " pooler saves nothing.",
            )
        if connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,):
            raise TargetUnavailable(
                f"The server at {options.uri} is a replica, which takes no rows.",
                "Name the primary in postgresql.uri, or all hosts and target_session_attrs=read-write.",
            )
        lock_ms, idle_ms = round(options.lock_timeout * 1000), round(options.idle_timeout * 1000)
        connection.execute(_SETTINGS.format(lock_ms=lock_ms, idle_ms=idle_ms))
        connection.commit()
    except BaseException:
        connection.close()
        raise
    return connection


def wrong_option(text: str, options: PostgresqlOptions) -> OptionError | None:
    """Return the error of a wrong user, password or database. None for any other error.

    libpq has no SQLSTATE for a refused connection. So the English text of its error decides. With another
    language the result is None.
    """
    answer = " ".join(text.split()).rpartition("FATAL: ")[2]
    login = r"no password supplied|password authentication failed|role .* (exist|log in)"
    if re.search(login, answer):
        return OptionError(
            f"The server of postgresql.uri {options.uri} refuses the login: {answer}",
            f"Correct the user in postgresql.uri, or the password: postgresql.password, or"
            f" {PASSWORD_VARIABLE} where it comes from there. {VARIABLE_IS_READ}",
        )
    if database := re.search(r'database "(.*)" does not exist', answer):
        return OptionError(
            f"The server of postgresql.uri {options.uri} has no such database: {answer}",
            f"Run: CREATE DATABASE {quote(database[1])}; Or correct the database, which is the last part of"
            " postgresql.uri.",
        )
    return None


def _parameters(options: PostgresqlOptions) -> dict[str, Any]:
    password = options.password or os.environ.get(PASSWORD_VARIABLE, "")
    return {
        **DEFAULTS,
        **conninfo.conninfo_to_dict(options.uri),
        **({"password": password} if password else {}),
        "client_encoding": "UTF8",
    }
