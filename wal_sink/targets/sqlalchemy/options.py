"""The options of the target `sql`. No I/O, and no SQLAlchemy: tasks read the options."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from wal_sink.errors import OptionError
from wal_sink.options import CONNECTS, SECRET, about, from_environment
from wal_sink.targets.ddl import CREATE_TABLE, PARTITION_COLUMNS
from wal_sink.targets.sql.options import KeyedOptions, LockTimeout, Mode, RequestTimeout, Table
from wal_sink.targets.sqlalchemy.dialects import DIALECTS, GENERIC, Dialect

PASSWORD_VARIABLE = "WAL_SINK_SQL_PASSWORD"  # noqa: S105 -- the name of a variable


class SqlAlchemyOptions(KeyedOptions, frozen=True, kw_only=True):
    """The options of a query's target `sql`.

    The password moves from the URL to `password`, so that errors and logs can show `url`.

    :raises OptionError: when constructed with a value that is invalid.
    """

    prefix: ClassVar[str] = "sql"
    url_field: ClassVar[str] = "url"

    table: Table
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
    mode: Mode = msgspec.field(name="sql.mode", default="append")
    ledger_table: Annotated[
        str,
        about(
            "table or schema.table with one row for each query, created if it is missing",
            min_length=1,
        ),
    ] = msgspec.field(name="sql.ledgerTable", default="wal_sink_ledger")
    request_timeout: RequestTimeout = msgspec.field(name="sql.requestTimeout", default=120.0)
    lock_timeout: LockTimeout = msgspec.field(name="sql.lockTimeout", default=10.0)

    def __post_init__(self) -> None:
        self.keep_apart()
        if self.backend in ("postgresql", "postgres"):
            raise OptionError(
                "Option sql.url names a database of PostgreSQL, which has a target of its own: the target"
                " postgresql is faster, and refuses tables that lose rows.",
                "Set target to postgresql, and give the URL as postgresql.uri=postgresql://user@host/database.",
            )
        if self.mode == "upsert" and not self.dialect.upsert:
            raise OptionError(
                f"Option sql.mode is upsert, and wal_sink knows no statement that replaces a row in"
                f" {self.backend}.",
                f"Set sql.mode to append; or use one of {', '.join(DIALECTS)}.",
            )
        _refuse_database(self.dialect, self.url)
        self.refuse_contradictions()
        for name in (self.destination, self.ledger):
            if self.backend == "sqlite" and name.schema not in ("", "main"):
                raise OptionError(
                    f"The name {name.text} has the schema {name.schema}, and a file of SQLite has only main.",
                    f"Write {name.table} in option table or sql.ledgerTable, and name the file in sql.url.",
                )
        if self.layout.partition and not self.dialect.is_mysql:
            raise OptionError(
                f"Option {PARTITION_COLUMNS} is given, and wal_sink makes no partitions in"
                f" {self.dialect.title}.",
                f"Leave out {PARTITION_COLUMNS}. For a partitioned table, create the table yourself, and"
                f" leave out {CREATE_TABLE}, too.",
            )

    @property
    def backend(self) -> str:
        """The name of the database, from the beginning of the URL."""
        return self.url.partition(":")[0].partition("+")[0].lower()

    @property
    def dialect(self) -> Dialect:
        """The dialect of the database."""
        return DIALECTS.get(self.backend, GENERIC)


def _refuse_database(dialect: Dialect, url: str) -> None:
    """Refuse a database in memory and a relative path: each process would open another database."""
    path = url.partition("://")[2].partition("?")[0].partition("/")[2]
    if dialect.is_file and not path.startswith("/"):
        raise OptionError(
            f"Option sql.url {url} names no file by an absolute path. A database in memory exists in one"
            " process only, and a relative path names another file in each process.",
            f"Name a file: {url.partition(':')[0]}:////data/shop.db, with four slashes.",
        )
