"""Connections to PostgreSQL: opened safely, with bounded waits; COPY of batches; and what errors mean.

COPY's binary format carries neither types nor names, so each column has to be exactly of the type that the
server expects; the tasks have cast it to that (`types.log_type`).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

import pgpq
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from pgpq import encoders
from pgpq import schema as pg
from psycopg import conninfo

from wal_sink.errors import OptionError, TargetUnavailable
from wal_sink.model.plan import Plan
from wal_sink.options import VARIABLE_IS_READ
from wal_sink.targets.arrow_values import are_deletes
from wal_sink.targets.casts import key_of
from wal_sink.targets.names import listed, quote
from wal_sink.targets.postgresql.options import (
    LONGEST,
    PASSWORD_VARIABLE,
    PostgresqlOptions,
)
from wal_sink.targets.postgresql.server import SETTINGS
from wal_sink.targets.postgresql.types import is_staged, parse, staged_type
from wal_sink.targets.sql.names import TableName
from wal_sink.targets.sql.staged import DELETED, FLAG, ORDINAL, delete, partial, upsert
from wal_sink.targets.unavailable import flags_of, new_row_error

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
        connection.execute(SETTINGS.format(lock_ms=lock_ms, idle_ms=idle_ms))
        connection.commit()
    except BaseException:
        connection.close()
        raise
    return connection


def wrong_option(text: str, options: PostgresqlOptions) -> OptionError | None:
    """Return what is wrong with user, password or database; None: it is not these.

    libpq has no SQLSTATE of a connection that was refused, so its text decides. A server that speaks another
    language is not understood, and its text is shown as that of any other error.
    """
    answer = " ".join(text.split()).rpartition("FATAL: ")[2]
    uri = options.uri
    if re.search(
        r"no password supplied|password authentication failed|role .* (exist|log in)", answer
    ):
        return OptionError(
            f"The server of postgresql.uri {uri} refuses the login: {answer}",
            f"Correct the user in postgresql.uri, or the password: postgresql.password, or"
            f" {PASSWORD_VARIABLE} where it comes from there. {VARIABLE_IS_READ}",
        )
    if database := re.search(r'database "(.*)" does not exist', answer):
        return OptionError(
            f"The server of postgresql.uri {uri} has no such database: {answer}",
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
    of_table, more = plan.of_table(), dict[str, tuple[str, pa.Array]]()
    if plan.operation is not None:
        more[DELETED] = "boolean", are_deletes(batch.column(plan.operation))
    unavailable = flags_of(batch, plan)
    flags = {name: FLAG.format(place) for place, name in enumerate(unavailable)}
    more |= {flags[name]: ("boolean", values) for name, values in unavailable.items()}
    rows = batch.select([column.name for column in of_table.columns])
    staged = _stage(connection, table, of_table, rows, more)
    names = [quote(name) for name in rows.schema.names]
    key = [quote(name) for name in key_of(plan)]
    query = _as_in_table(of_table, staged, more)
    if not key:
        listed, ordinal = ", ".join(names), quote(ORDINAL)
        connection.execute(
            f"INSERT INTO {table} ({listed}) SELECT {listed} FROM ({query}) AS staged ORDER BY {ordinal}"  # noqa: S608
        )
    else:
        deletes = DELETED in more
        if deletes and (not batch.num_rows or pc.any(more[DELETED][1]).as_py()):
            connection.execute(delete(str(table), key, query))
        if not flags:
            connection.execute(upsert(str(table), names, key, query, deletes=deletes))
        else:
            quoted = {quote(name): quote(flag) for name, flag in flags.items()}
            change = partial(str(table), names, key, query, quoted, deletes=deletes)
            if connection.execute(change.new).fetchone()[0]:
                raise new_row_error()
            for statement in change.write:
                connection.execute(statement)
    connection.execute(f"TRUNCATE {staged}")


def _as_in_table(plan: Plan, staged: str, more: Iterable[str]) -> str:
    """Return the query of the temporary table whose columns are as the table takes them."""
    values = [
        f"{quote(column.name)}::{column.type} AS {quote(column.name)}"
        if staged_type(column.type)
        else quote(column.name)
        for column in plan.columns
    ]
    return f"SELECT {', '.join([*values, *map(quote, (*more, ORDINAL))])} FROM {staged}"  # noqa: S608


def _stage(
    connection: Any,
    table: TableName,
    plan: Plan,
    batch: pa.RecordBatch,
    more: Mapping[str, tuple[str, pa.Array]],
) -> str:
    """Copy rows into a temporary table of this session, and return its name.

    :param more: columns beside the table's, by name: their type and their values.
    """
    kind = " partial" if FLAG.format(0) in more else ""
    staged = f"pg_temp.{quote(LONGEST.cut(f'wal_sink {plan.key}{kind}'))}"
    connection.execute("SET LOCAL client_min_messages = warning")  # not that it is there already
    ordinals = pa.array(range(batch.num_rows), pa.int64())
    more = {**more, ORDINAL: ("bigint", ordinals)}
    connection.execute(
        f"CREATE TEMPORARY TABLE IF NOT EXISTS {staged} ON COMMIT DELETE ROWS AS"
        f" {_staged_columns(table, plan, more)} WITH NO DATA"
    )
    types = [staged_type(column.type) or column.type for column in plan.columns]
    for name, (type_, values) in more.items():
        batch = batch.append_column(name, values)
        types.append(type_)
    _copy(connection, staged, batch, types)
    return staged


def _staged_columns(table: TableName, plan: Plan, more: Mapping[str, tuple[str, pa.Array]]) -> str:
    """Return the query that says how the temporary table looks.

    For an upsert its columns are those of the table, with their collations: the same keys are equal. Beside
    the key they are not of the table's domains where a delete or an unavailable cell has nulls.
    """
    key = key_of(plan)
    like_table = set(key) if len(more) > 1 else {column.name for column in plan.columns if key}
    columns = [
        quote(column.name)
        if column.name in like_table and not staged_type(column.type)
        else f"NULL::{staged_type(column.type) or column.type} AS {quote(column.name)}"
        for column in plan.columns
    ]
    columns += [f"NULL::{type_} AS {quote(name)}" for name, (type_, _) in more.items()]
    return f"SELECT {', '.join(columns)}{f' FROM {table}' if key else ''}"  # noqa: S608 -- quoted names


def _copy(connection: Any, into: str, batch: pa.RecordBatch, types: Sequence[str]) -> None:
    """Run one COPY of a batch whose columns are of these types."""
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
        if (type_ := parse(words)) is not None and type_.base == "jsonb"
        else pgpq.ArrowToPostgresBinaryEncoder.infer_encoder(field)
        for field, words in zip(schema, types, strict=True)
    }
    return pgpq.ArrowToPostgresBinaryEncoder.new_with_encoders(schema, chosen)


def _jsonb(field: pa.Field) -> Any:
    if pa.types.is_list(field.type):
        inner = encoders.StringEncoderBuilder.new_with_output(field.type.value_field, pg.Jsonb())
        return encoders.ListEncoderBuilder.new_with_inner(field, inner)
    return encoders.StringEncoderBuilder.new_with_output(field, pg.Jsonb())
