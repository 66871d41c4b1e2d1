"""The options of SQL targets: where to connect, which table, and how rows get into it. No I/O.

`KeyedOptions` is for targets that replace and delete rows by key; what its errors name begins with the
target's name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal
from urllib.parse import unquote

import msgspec

from wal_sink.errors import OptionError
from wal_sink.options import SECONDS, SHAPES, Options, about, secret_parameter
from wal_sink.targets.create_table import refuse_key_and_mode
from wal_sink.targets.operations import OperationOptions
from wal_sink.targets.sql.names import Longest, TableName


class SqlOptions(Options, frozen=True, kw_only=True):
    """The base of a SQL target's options, which add where to connect."""

    table: Annotated[
        str,
        about("table that rows are added to, such as orders or shop.orders", SHAPES, min_length=1),
    ]
    # A target declares it again under its own name, such as postgresql.ledgerTable.
    ledger_table: Annotated[
        str,
        about(
            "table with one row for each query, in the same database; created if it is missing",
            min_length=1,
        ),
    ] = msgspec.field(name="ledgerTable", default="wal_sink_ledger")


Table = Annotated[str, about("Table or schema.table, by its exact name", SHAPES, min_length=1)]
Mode = Annotated[
    Literal["append", "upsert"],
    about(
        "append: each row is added. upsert: a row replaces the one with its key, and of several rows"
        " with one key the last one stays",
        SHAPES,
    ),
]
RequestTimeout = Annotated[
    float, about("How long to wait for the answer to one statement, above 0", SECONDS, gt=0)
]
LockTimeout = Annotated[
    float,
    about(
        "How long to wait for a lock, such as another flusher's on the ledger row, above 0",
        SECONDS,
        gt=0,
    ),
]

LEDGER_TABLE = "wal_sink_ledger"


class KeyedOptions(OperationOptions, frozen=True, kw_only=True):
    """The base of the options, of which each target declares those below under its own names."""

    prefix: ClassVar[str]
    """The target's name, with which the names of its options begin."""
    default_schema: ClassVar[str] = ""
    """Of a table that is named without one."""
    if TYPE_CHECKING:
        table: str
        password: str
        mode: Literal["append", "upsert"]
        ledger_table: str

    @property
    def longest(self) -> Longest:
        """The longest name that the database takes."""
        return Longest()

    @property
    def data(self) -> TableName:
        """The table to write to."""
        return TableName.parse(self.table, self.default_schema)

    @property
    def ledger(self) -> TableName:
        """The ledger's table."""
        return TableName.parse(self.ledger_table or LEDGER_TABLE, self.default_schema)

    def keep_apart(self, field: str, password: str) -> None:
        """Take the password out of the URL.

        :param field: that has the URL.
        :param password: of the URL's parameters.
        :raises OptionError: there are two of them. No error shows the URL.
        """
        name = f"{self.prefix}.{field}"
        url, of_url = _without_password(name, getattr(self, field).strip(), self.prefix)
        password = of_url or password
        if password and self.password and password != self.password:
            raise OptionError(
                f"Option {name} has a password, and {self.prefix}.password another one.",
                "Give one of them.",
            )
        msgspec.structs.force_setattr(self, field, url)
        msgspec.structs.force_setattr(self, "password", password or self.password)

    def refuse_contradictions(self) -> None:
        """Refuse names of no table, and options that contradict each other.

        :raises OptionError: there are such.
        """
        mode = f"{self.prefix}.mode"
        names = {
            "table": self.table,
            f"{self.prefix}.ledgerTable": self.ledger_table or LEDGER_TABLE,
        }
        for option, name in names.items():
            parts = name.split(".")
            if max(map(self.longest.size, parts)) > self.longest.most:
                raise OptionError(
                    f"Option {option}: {name} is longer than {self.longest}, the most that the database"
                    " takes.",
                    "Give the table a shorter name.",
                )
            quoted = any(part.startswith(('"', "`")) for part in parts)
            if len(parts) > 2 or not all(parts) or quoted or {",", "\0"} & {*name}:
                raise OptionError(
                    f"Option {option}: {name} is not the name of a table.",
                    "Write the exact name of one table, without quotes: table, or schema.table.",
                )
        if self.data == self.ledger:
            raise OptionError(
                f"Options table and {self.prefix}.ledgerTable both name {self.table}.",
                "Give the ledger a table of its own.",
            )
        layout = self.layout
        if self.create_table:
            refuse_key_and_mode(mode, self.mode, layout)
        self.refuse_without_key(mode, self.mode)


_URL = re.compile(r"(?P<scheme>[A-Za-z][\w+]*)://(?:(?P<login>[^/]*)@)?(?P<rest>[^@]*)")


def _without_password(option: str, url: str, prefix: str) -> tuple[str, str]:
    """Take a URL apart: the URL without its password, and the password."""
    parts = _URL.fullmatch(url)
    if parts is None:
        raise OptionError(
            f"Option {option} is not a URL of a database.",
            "Write it as scheme://user@host:port/database; a character such as @, / or # in user or password"
            " is written %40, %2F, %23.",
        )
    if name := secret_parameter(url):
        raise OptionError(
            f"Option {option} has the parameter {name}, which would be written to the log.",
            f"Leave it out. The user's password goes into {prefix}.password, or into"
            f" WAL_SINK_{prefix.upper()}_PASSWORD; a key may be without one.",
        )
    if parts["login"] is None:
        return url, ""
    user, _, password = parts["login"].partition(":")
    return f"{parts['scheme']}://{user}@{parts['rest']}", unquote(password)
