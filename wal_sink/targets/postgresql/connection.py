"""Connections to PostgreSQL: opened safely, with bounded waits; COPY of batches; and what errors mean.

COPY's binary format carries neither types nor names, so each column has to be exactly of the type that the
server expects; the tasks have cast it to that (`types.log_type`).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Generator, Sequence
from typing import Any

import pgpq
import psycopg
import pyarrow as pa
from pgpq import encoders
from pgpq import schema as pg
from psycopg import conninfo

from wal_sink.errors import OptionError, TargetUnavailable
from wal_sink.model.plan import Plan
from wal_sink.options import VARIABLE_IS_READ
from wal_sink.targets.casts import key_of
from wal_sink.targets.postgresql.options import PASSWORD_VARIABLE, PostgresqlOptions
from wal_sink.targets.postgresql.types import is_staged, staged_type
from wal_sink.targets.sql import staged
from wal_sink.targets.sql.options import TableName
from wal_sink.targets.sql.types import LISTS
from wal_sink.targets.sql_text import listed, quote
from wal_sink.targets.text_formats import as_uuid

# For what the URI does not say. A host that is gone is noticed after half a minute; one that is there and
# whose server keeps silent, by `BoundedConnection`.
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
"""Of a session, whatever the role's or the database's defaults are; of those that the server has:
`transaction_timeout` came with PostgreSQL 17. An acknowledged COMMIT has to survive a crash, as the log is
trimmed after it: what is weaker than on this server's disk is made `on`."""


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that is closed when the server keeps silent for too long.

    libpq bounds how long a *host* may be silent, not a server that stalls on a host that answers.
    """

    request_timeout = 120.0
    """Of a single wait, in seconds."""

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        """Wait for the server, as the driver does; all of its methods call this."""
        return super().wait(self._bounded(gen), *args, **kwargs)

    def _bounded(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Pass on what the driver waits for; it comes back every tenth of a second when nothing is ready."""
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
    """Connect to the server that takes writes.

    The password is that of the options, or else that of the environment now.

    :raises OptionError: libpq does not know a parameter of the URI; the server refuses the login, or has no
        such database; it is a pooler, and not the server.
    :raises TargetUnavailable: the server is a replica.
    :raises psycopg.Error: it does not answer, or refuses.
    """
    try:
        connection = BoundedConnection.connect(**_parameters(options), prepare_threshold=None)
    except psycopg.OperationalError as error:
        if (wrong := wrong_option(str(error), options)) is not None:
            raise wrong from error
        raise
    connection.request_timeout = options.request_timeout
    try:
        ((serving,),) = connection.execute("SELECT pg_backend_pid()").fetchall()
        if serving != connection.info.backend_pid:  # which came with the login
            raise OptionError(
                f"Option postgresql.uri {options.uri} leads to a pooler, such as PgBouncer, and not to the"
                " server: the settings of a session could be lost between its transactions.",
                "Name the server itself, by its own port. A flusher keeps one connection: a pooler spares"
                " none.",
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
    """Return what is wrong with user, password, database or TLS; None: it is not these.

    libpq has no SQLSTATE of a connection that was refused, so its text decides. A server that speaks another
    language is not understood, and its text is shown as that of any other error.
    """
    answer = " ".join(text.split()).rpartition("FATAL: ")[2]
    login = r"no password supplied|password authentication failed|role .* (exist|log in)"
    if re.search(login, answer):
        return OptionError(
            f"The server of postgresql.uri {options.uri} refuses the login: {answer}",
            f"Correct the user in postgresql.uri, or the password: postgresql.password, or"
            f" {PASSWORD_VARIABLE} where it comes from there. {VARIABLE_IS_READ}",
        )
    if "server does not support SSL" in answer:
        return OptionError(
            f"The server of postgresql.uri {options.uri} has no TLS, which sslmode in that option asks for.",
            "Let the server have TLS: ssl = on in postgresql.conf, and a certificate. Or write"
            " sslmode=prefer, and password and rows can be read on the way.",
        )
    if database := re.search(r'database "(.*)" does not exist', answer):
        return OptionError(
            f"The server of postgresql.uri {options.uri} has no such database: {answer}",
            f"Run: CREATE DATABASE {quote(database[1])}; Or correct the database, which is the last part of"
            " postgresql.uri.",
        )
    return None


def _parameters(options: PostgresqlOptions) -> dict[str, Any]:
    try:
        parameters = conninfo.conninfo_to_dict(options.uri)
    except psycopg.ProgrammingError as error:
        raise OptionError(
            f"Option postgresql.uri: {str(error).strip()}.",
            "Correct it; PostgreSQL's documentation lists the parameters of a connection string.",
        ) from error
    password = options.password or os.environ.get(PASSWORD_VARIABLE, "")
    return {
        **DEFAULTS,
        **parameters,
        **({"password": password} if password else {}),
        "client_encoding": "UTF8",
    }


_PIECE = 8_192
"""Rows that are encoded at once, while the server takes those before them."""


def write(connection: Any, table: TableName, plan: Plan, batch: pa.RecordBatch) -> None:
    """Write rows in the open transaction: add them, or replace and delete those of the plan's key.

    :param batch: in the types of the log; without rows the same statements are run.
    :raises Exception: of the driver.
    """
    if not is_staged(plan):
        _copy(connection, str(table), batch, [column.type for column in plan.columns])
        return
    rows = staged.staged(plan, batch)
    temporary = _stage(connection, table, plan, rows)
    values = [
        f"{quote(column.name)}::{column.type} AS {quote(column.name)}"
        if staged_type(column.type)
        else quote(column.name)
        for column in plan.of_table().columns
    ]
    query = f"SELECT {', '.join([*values, *map(quote, rows.added)])} FROM {temporary}"  # noqa: S608
    with connection.cursor() as cursor:
        staged.write(cursor, plan, rows, query)
        cursor.execute(f"TRUNCATE {temporary}")


def _stage(connection: Any, table: TableName, plan: Plan, rows: staged.Staged) -> str:
    """Copy rows into a temporary table of this session, and return its name.

    Its key has the table's collations: the same keys are equal. Other columns are not of the table's domains:
    a delete or an unavailable cell has nulls.
    """
    kind = f"{'d' * rows.deletes}{'u' * bool(rows.flags)}"
    temporary = f"pg_temp.{quote(f'wal_sink {plan.key[:32]} {kind}')}"
    columns, key = plan.of_table().columns, key_of(plan)
    types = [staged_type(column.type) or column.type for column in columns]
    listed_columns = [
        quote(column.name)
        if column.name in key and type_ == column.type
        else _null(column.name, type_)
        for column, type_ in zip(columns, types, strict=True)
    ]
    listed_columns += [_null(name, type_) for name, type_ in rows.added.items()]
    connection.execute("SET LOCAL client_min_messages = warning")  # not that it is there already
    connection.execute(
        f"CREATE TEMPORARY TABLE IF NOT EXISTS {temporary} ON COMMIT DELETE ROWS AS"  # noqa: S608 -- quoted
        f" SELECT {', '.join(listed_columns)}{f' FROM {table}' if key else ''} WITH NO DATA"
    )
    _copy(connection, temporary, rows.batch, [*types, *rows.added.values()])
    return temporary


def _null(name: str, type_: str) -> str:
    return f"NULL::{type_} AS {quote(name)}"


def _copy(connection: Any, into: str, batch: pa.RecordBatch, types: Sequence[str]) -> None:
    """Run one COPY of a batch whose columns are of these types."""
    for place, (name, type_) in enumerate(zip(batch.schema.names, types, strict=True)):
        if type_ == "uuid":
            batch = batch.set_column(place, name, as_uuid(batch.column(place)))
    encoder = _encoder(batch.schema, types)
    statement = f"COPY {into} ({listed(batch.schema.names)}) FROM STDIN (FORMAT binary)"
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(encoder.write_header())
        for begin in range(0, batch.num_rows, _PIECE):
            copy.write(encoder.write_batch(batch.slice(begin, _PIECE)))
        copy.write(encoder.finish())


def _encoder(schema: pa.Schema, types: Sequence[str]) -> pgpq.ArrowToPostgresBinaryEncoder:
    """Return pgpq's encoder; it has to be told of JSONB only, whose texts have a version before them."""
    chosen = {
        field.name: _jsonb(field)
        if words.removesuffix(LISTS) == "jsonb"
        else pgpq.ArrowToPostgresBinaryEncoder.infer_encoder(field)
        for field, words in zip(schema, types, strict=True)
    }
    return pgpq.ArrowToPostgresBinaryEncoder.new_with_encoders(schema, chosen)


def _jsonb(field: pa.Field) -> Any:
    if pa.types.is_list(field.type):
        inner = encoders.StringEncoderBuilder.new_with_output(field.type.value_field, pg.Jsonb())
        return encoders.ListEncoderBuilder.new_with_inner(field, inner)
    return encoders.StringEncoderBuilder.new_with_output(field, pg.Jsonb())
