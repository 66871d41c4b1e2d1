"""Declares and validates the options of the PostgreSQL target; and quotes names.

Names are always quoted in statements, so that reserved words and capitals mean themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, NamedTuple, Self
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit
from urllib.parse import quote as percent_encoded

import msgspec

from wal_sink.errors import OptionError
from wal_sink.options import CONNECTS, SECONDS, SECRET, SHAPES, about, from_environment
from wal_sink.targets.create_table import refuse_key_and_mode
from wal_sink.targets.names import did_you_mean, quote
from wal_sink.targets.operations import OperationOptions

__all__ = [
    "DEFAULT_SCHEMA",
    "MAX_BYTES",
    "TableName",
    "did_you_mean",
    "is_name",
    "listed",
    "quote",
]

DEFAULT_SCHEMA = "public"
MAX_BYTES = 63
"""Of a name; the server cuts longer ones off."""


class TableName(NamedTuple):
    """The exact names of a table and its schema, unquoted, as `pg_catalog` has them."""

    schema: str
    table: str

    def __str__(self) -> str:
        """Quote both, as they stand in statements, plans and errors."""
        return f"{quote(self.schema)}.{quote(self.table)}"

    @classmethod
    def parse(cls, text: str, schema: str = DEFAULT_SCHEMA) -> Self:
        """Read `table` or `schema.table`.

        :param schema: where the text names none.
        """
        named, dot, table = text.partition(".")
        return cls(named, table) if dot else cls(schema, text)


def is_name(name: str) -> bool:
    """Whether PostgreSQL keeps the name as it is."""
    return 0 < len(name.encode()) <= MAX_BYTES and "\0" not in name


def listed(names: Iterable[str]) -> str:
    """Quote identifiers, as statements list them."""
    return ", ".join(map(quote, names))


LEDGER_TABLE = "wal_sink_ledger"
PASSWORD_VARIABLE = "WAL_SINK_POSTGRESQL_PASSWORD"  # noqa: S105 -- the name of a variable
SCHEMES = ("postgresql", "postgres")


class PostgresqlOptions(OperationOptions, frozen=True, kw_only=True):
    """Where the database is, how to connect, and what to write to.

    A password in the URI is taken out of it: `uri` has none, and can be shown.

    :raises OptionError: when constructed with a value that is invalid.
    """

    table: Annotated[str, about("Table or schema.table, by its exact name", SHAPES, min_length=1)]
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
    mode: Annotated[
        Literal["append", "upsert"],
        about(
            "append: each row is added. upsert: a row replaces the one with its key, and of several rows"
            " with one key the last one stays",
            SHAPES,
        ),
    ] = msgspec.field(name="postgresql.mode", default="append")
    ledger_table: Annotated[
        str,
        about(
            "Table or schema.table of the ledger, which has one row for each query. It is"
            " created if"
            f" missing. Default: {LEDGER_TABLE} in the schema of the table"
        ),
    ] = msgspec.field(name="postgresql.ledgerTable", default="")
    request_timeout: Annotated[
        float, about("How long to wait for the answer to one statement, above 0", SECONDS, gt=0)
    ] = msgspec.field(name="postgresql.requestTimeout", default=120.0)
    lock_timeout: Annotated[
        float,
        about(
            "How long to wait for a lock, such as another flusher's on the ledger row, above 0",
            SECONDS,
            gt=0,
        ),
    ] = msgspec.field(name="postgresql.lockTimeout", default=10.0)
    idle_timeout: Annotated[
        float,
        about(
            "How long until the server ends the transaction of a silent flusher, above 0",
            SECONDS,
            gt=0,
        ),
    ] = msgspec.field(name="postgresql.idleInTransactionTimeout", default=60.0)

    def __post_init__(self) -> None:
        uri, password = _without_password(self.uri)
        if password and self.password and password != self.password:
            raise OptionError(
                "Option postgresql.uri has a password, and postgresql.password another one.",
                "Give one of them.",
            )
        msgspec.structs.force_setattr(self, "uri", uri)
        msgspec.structs.force_setattr(self, "password", password or self.password)
        _refuse_bad_name("table", self.data)
        _refuse_bad_name("postgresql.ledgerTable", self.ledger)
        if self.data == self.ledger:
            raise OptionError(
                f"Options table and postgresql.ledgerTable both name {self.data}.",
                "Give the ledger a table of its own.",
            )

        layout = self.layout
        if self.create_table:
            refuse_key_and_mode("postgresql.mode", self.mode, layout)
        self.refuse_deletes("postgresql.mode", self.mode)

    @property
    def data(self) -> TableName:
        """The table to write to."""
        return TableName.parse(self.table)

    @property
    def ledger(self) -> TableName:
        """The ledger's table."""
        return TableName.parse(self.ledger_table or LEDGER_TABLE, self.data.schema)


def _without_password(uri: str) -> tuple[str, str]:
    """Take a URI apart: the URI without its password, and the password.

    No error shows the URI, which may hold a password.
    """
    try:
        parts = urlsplit(uri.strip())
        parameters = parse_qsl(
            parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)
        )
    except ValueError:
        parts, parameters = SplitResult("", "", "", "", ""), []
    if parts.scheme not in SCHEMES or parts.fragment:
        raise OptionError(
            "Option postgresql.uri is not a URI of libpq.",
            "Write it as postgresql://user@host:5432/database; a character such as @, / or # in user or"
            " password is written %40, %2F, %23.",
        )
    login, at, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    for name, value in parameters:
        if name == "password":
            password = percent_encoded(value)
        if name == "sslpassword":
            raise OptionError(
                "Option postgresql.uri holds the password of a key (sslpassword), which would be written to"
                " the log.",
                "Use a key without a password that only this user can read.",
            )
    kept = [(name, value) for name, value in parameters if name != "password"]
    query = urlencode(kept, quote_via=percent_encoded, safe="/:,")
    shown = f"{parts.scheme}://{user}{at}{hosts}{parts.path}{'?' if query else ''}{query}"
    return shown, unquote(password)


def _refuse_bad_name(option: str, name: TableName) -> None:
    if "," in "".join(name):
        raise OptionError(
            f"Option {option} names several tables ({'.'.join(name)}), which is not supported yet.",
            "Name one table, and start one query per table.",
        )
    if "." in name.table or not all(map(is_name, name)):
        raise OptionError(
            f"Option {option}: {'.'.join(name)} is not the name of a table.",
            "Write the exact name, without quotes: table, or schema.table, of at most 63 bytes each.",
        )
