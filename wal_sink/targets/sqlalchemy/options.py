"""Declares and validates the options of the target `sql`. No I/O, and no SQLAlchemy: tasks read them."""

from __future__ import annotations

import re
from typing import Annotated, Literal, NamedTuple
from urllib.parse import unquote

import msgspec

from wal_sink.errors import OptionError
from wal_sink.options import (
    CONNECTS,
    SECONDS,
    SECRET,
    SHAPES,
    about,
    from_environment,
    secret_parameter,
)
from wal_sink.targets.create_table import CREATE_TABLE, PARTITION_COLUMNS, refuse_key_and_mode
from wal_sink.targets.operations import OperationOptions
from wal_sink.targets.sqlalchemy.dialects import DIALECTS, Dialect

PASSWORD_VARIABLE = "WAL_SINK_SQL_PASSWORD"  # noqa: S105 -- the name of a variable


class SqlAlchemyOptions(OperationOptions, frozen=True, kw_only=True):
    """Where the database is, how to connect, and what to write to.

    A password in the URL is taken out of it: `url` has none, and can be shown.

    :raises OptionError: when constructed with a value that is invalid.
    """

    table: Annotated[
        str, about("table or schema.table to write to, exact name", SHAPES, min_length=1)
    ]
    url: Annotated[
        str,
        about(
            "SQLAlchemy URL, such as mysql+pymysql://user@host:3306/shop; its password is kept"
            f" apart, and may come from {PASSWORD_VARIABLE} instead",
            CONNECTS,
            min_length=1,
        ),
    ] = msgspec.field(name="sql.url")
    password: Annotated[
        str, about("password of the URL's user", SECRET, from_environment(PASSWORD_VARIABLE))
    ] = msgspec.field(name="sql.password", default="")
    mode: Annotated[
        Literal["append", "upsert"],
        about(
            "append: each row is added; upsert: a row replaces the one with its key, and the last row of"
            " a key wins",
            SHAPES,
        ),
    ] = msgspec.field(name="sql.mode", default="append")
    ledger_table: Annotated[
        str,
        about(
            "table or schema.table with one row for each query, created if it is missing",
            min_length=1,
        ),
    ] = msgspec.field(name="sql.ledgerTable", default="wal_sink_ledger")
    request_timeout: Annotated[
        float, about("how long to wait for the answer to one statement, above 0", SECONDS, gt=0)
    ] = msgspec.field(name="sql.requestTimeout", default=120.0)
    lock_timeout: Annotated[
        float,
        about(
            "how long to wait for a lock, such as another flusher's on the ledger row, above 0",
            SECONDS,
            gt=0,
        ),
    ] = msgspec.field(name="sql.lockTimeout", default=10.0)

    def __post_init__(self) -> None:
        url, password = _without_password(self.url.strip())
        if password and self.password and password != self.password:
            raise OptionError(
                "Option sql.url has a password, and sql.password another one.", "Give one of them."
            )
        msgspec.structs.force_setattr(self, "url", url)
        msgspec.structs.force_setattr(self, "password", password or self.password)
        _refuse_database(self.dialect, url)
        for option, name in (("table", self.table), ("sql.ledgerTable", self.ledger_table)):
            if "," in name or not all(TableName.parse(name)[1:]) or name.count(".") > 1:
                raise OptionError(
                    f"Option {option}: {name} is not the name of a table.",
                    "Write the exact name, without quotes: table, or schema.table.",
                )
        if self.table == self.ledger_table:
            raise OptionError(
                f"Options table and sql.ledgerTable both name {self.table}.",
                "Give the ledger a table of its own.",
            )
        layout = self.layout
        if self.create_table:
            refuse_key_and_mode("sql.mode", self.mode, layout)
        if layout.partition and not self.dialect.partitions:
            raise OptionError(
                f"Option {PARTITION_COLUMNS} is given, and wal_sink makes no partitions in"
                f" {self.dialect.title}.",
                f"Leave it out, or make the table yourself, and leave out {CREATE_TABLE}.",
            )
        self.refuse_deletes("sql.mode", self.mode)

    @property
    def dialect(self) -> Dialect:
        """What is particular to the database."""
        return DIALECTS[_backend(self.url)]


class TableName(NamedTuple):
    """The names of a table and its schema; empty: where the connection looks by itself."""

    schema: str
    table: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Read `table` or `schema.table`."""
        schema, dot, table = text.rpartition(".")
        return cls(schema if dot else "", table)


def _backend(url: str) -> str:
    return url.partition(":")[0].partition("+")[0].lower()


_URL = re.compile(r"(?P<scheme>[A-Za-z][\w+]*)://(?:(?P<login>[^/]*)@)?(?P<rest>[^@]*)")


def _without_password(url: str) -> tuple[str, str]:
    """Take a URL apart: the URL without its password, and the password. No error shows the URL."""
    found = _URL.fullmatch(url)
    if found is None:
        raise OptionError(
            "Option sql.url is not a URL of SQLAlchemy.",
            "Write it as dialect+driver://user@host:port/database, such as mysql+pymysql://user@host/shop or"
            " sqlite:////data/shop.db; a character such as @, / or # in user or password is written %40, %2F,"
            " %23.",
        )
    if _backend(url) not in DIALECTS:
        raise OptionError(
            f"Option sql.url names the database {_backend(url)}, of which it is not known whether a window"
            " gets there exactly once.",
            f"Use one of {', '.join(DIALECTS)}; or derive a target of your own from"
            " wal_sink.targets.sql.SqlTarget.",
        )
    rest = found["rest"]
    if name := secret_parameter(url):
        raise OptionError(
            f"Option sql.url has the parameter {name}, which would be written to the log.",
            f"Give the password as sql.password, or by {PASSWORD_VARIABLE}.",
        )
    if found["login"] is None:
        return url, ""
    user, _, password = found["login"].partition(":")
    return f"{found['scheme']}://{user}@{rest}", unquote(password)


def _refuse_database(dialect: Dialect, url: str) -> None:
    """Refuse a database that is gone with its process, or that each process would look for elsewhere."""
    if not dialect.is_file:
        return
    rest, _, parameters = url.partition("://")[2].partition("?")
    path = rest.partition("/")[2]
    remedy = f"Name a file: {url.partition(':')[0]}:////data/shop.db, with four slashes."
    if not path or path.startswith((":memory:", "file:")) or "mode=memory" in parameters:
        raise OptionError(f"Option sql.url {url} is a database in memory, of one process.", remedy)
    if not path.startswith("/"):
        raise OptionError(
            f"Option sql.url {url} is relative to the folder of each process: they would write to several.",
            remedy,
        )
