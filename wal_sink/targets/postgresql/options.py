"""The options of the target `postgresql`. No I/O."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from wal_sink.errors import OptionError
from wal_sink.options import CONNECTS, SECONDS, SECRET, about, from_environment
from wal_sink.targets.sql.options import (
    LEDGER_TABLE,
    KeyedOptions,
    LockTimeout,
    Mode,
    RequestTimeout,
    Table,
    TableName,
)

PASSWORD_VARIABLE = "WAL_SINK_POSTGRESQL_PASSWORD"  # noqa: S105 -- the name of a variable
LONGEST = 63
"""The most bytes of a name. PostgreSQL cuts a longer name without an error."""


class PostgresqlOptions(KeyedOptions, frozen=True, kw_only=True):
    """The options of a query's target `postgresql`.

    The password moves from the URI to `password`, so that errors and logs can show `uri`.

    :raises OptionError: when constructed with a value that is invalid.
    """

    prefix: ClassVar[str] = "postgresql"
    url_field: ClassVar[str] = "uri"
    default_schema: ClassVar[str] = "public"

    table: Table
    uri: Annotated[
        str,
        about(
            "URI of libpq, such as postgresql://user@host:5432/database?sslmode=verify-full. A password"
            " in it is kept apart, and never shown",
            CONNECTS,
            min_length=1,
        ),
    ] = msgspec.field(name="postgresql.uri")
    password: Annotated[
        str,
        about(
            "Password of the user in postgresql.uri", SECRET, from_environment(PASSWORD_VARIABLE)
        ),
    ] = msgspec.field(name="postgresql.password", default="")
    mode: Mode = msgspec.field(name="postgresql.mode", default="append")
    ledger_table: Annotated[
        str,
        about(
            "Table or schema.table of the ledger, which has one row for each query. It is"
            " created if"
            f" missing. Default: {LEDGER_TABLE} in the schema of the table"
        ),
    ] = msgspec.field(name="postgresql.ledgerTable", default="")
    request_timeout: RequestTimeout = msgspec.field(name="postgresql.requestTimeout", default=120.0)
    lock_timeout: LockTimeout = msgspec.field(name="postgresql.lockTimeout", default=10.0)
    idle_timeout: Annotated[
        float,
        about(
            "How long until the server ends the transaction of a silent flusher, above 0",
            SECONDS,
            gt=0,
        ),
    ] = msgspec.field(name="postgresql.idleInTransactionTimeout", default=60.0)

    def __post_init__(self) -> None:
        self.keep_apart()
        self.refuse_contradictions()
        names = {"table": self.destination, "postgresql.ledgerTable": self.ledger}
        for option, name in names.items():
            if max(len(part.encode()) for part in name) > LONGEST:
                raise OptionError(
                    f"Option {option}: {name.text} has a name of more than {LONGEST} bytes, which PostgreSQL"
                    " cuts.",
                    "Give the table and its schema shorter names.",
                )

    @property
    def ledger(self) -> TableName:
        """The ledger's table, by default in the schema of the table."""
        return TableName.parse(self.ledger_table or LEDGER_TABLE, self.destination.schema)
