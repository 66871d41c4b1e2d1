"""The options that SQL targets share: table, ledger, mode, time-outs. No I/O.

`SqlOptions` is the base for targets of other authors. `KeyedOptions` is the base for `postgresql` and `sql`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple, Self
from urllib.parse import unquote

import msgspec

from wal_sink.errors import OptionError
from wal_sink.options import SECONDS, SHAPES, Options, about, secret_parameter
from wal_sink.targets.ddl import quote, refuse_key_and_mode
from wal_sink.targets.operation_options import OperationOptions


class TableName(NamedTuple):
    """The exact names of a table and its schema. An empty schema means the default of the connection."""

    schema: str
    table: str

    def __str__(self) -> str:
        """Return the names, quoted by the SQL standard."""
        return ".".join(quote(part) for part in self if part)

    @property
    def text(self) -> str:
        """The name without quotes, as in an option."""
        return ".".join(filter(None, self))

    @classmethod
    def parse(cls, text: str, schema: str = "") -> Self:
        """Parse `table` or `schema.table`.

        :param schema: the schema of a plain `table`.
        """
        named, dot, table = text.partition(".")
        return cls(named, table) if dot else cls(schema, text)


class SqlOptions(Options, frozen=True, kw_only=True):
    """The base of the options of a SQL target. The target adds options that say where to connect."""

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
    """The base of the options of `postgresql` and `sql`. Their names begin with the name of the target."""

    prefix: ClassVar[str]
    """The target's name."""
    url_field: ClassVar[str]
    """The name of the field with the URL."""
    default_schema: ClassVar[str] = ""
    """The schema of a table that an option names without a schema."""
    if TYPE_CHECKING:  # each target declares these under names of its own, such as sql.mode
        table: str
        password: str
        mode: Literal["append", "upsert"]
        ledger_table: str

    @property
    def destination(self) -> TableName:
        """The table of the rows."""
        return TableName.parse(self.table, self.default_schema)

    @property
    def ledger(self) -> TableName:
        """The ledger's table."""
        return TableName.parse(self.ledger_table or LEDGER_TABLE, self.default_schema)

    @property
    def place(self) -> str:
        """The URL, without a password."""
        return str(getattr(self, self.url_field))

    def keep_apart(self) -> None:
        """Move the password from the URL to its own field.

        :raises OptionError: URL and field have different passwords, or the URL cannot be parsed. The error
            does not show the URL.
        """
        name = f"{self.prefix}.{self.url_field}"
        url, password = _without_password(name, self.place.strip(), self.prefix)
        if password and self.password and password != self.password:
            raise OptionError(
                f"Option {name} has a password, and {self.prefix}.password another one.",
                "Set only one of them.",
            )
        msgspec.structs.force_setattr(self, self.url_field, url)
        msgspec.structs.force_setattr(self, "password", password or self.password)

    def refuse_contradictions(self) -> None:
        """Refuse texts that name no table, and options that contradict each other."""
        mode = f"{self.prefix}.mode"
        names = {
            "table": self.table,
            f"{self.prefix}.ledgerTable": self.ledger_table or LEDGER_TABLE,
        }
        for option, name in names.items():
            parts = name.split(".")
            quoted = any(part.startswith(('"', "`")) for part in parts)
            if len(parts) > 2 or not all(parts) or quoted or {",", "\0"} & {*name}:
                raise OptionError(
                    f"Option {option}: {name} is not the name of a table.",
                    "Write the exact name of one table, without quotes: table, or schema.table.",
                )
        if self.destination == self.ledger:
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
    """Return a URL without its password, and the password."""
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
            f"Leave it out. Set the user's password in {prefix}.password, or in the variable"
            f" WAL_SINK_{prefix.upper()}_PASSWORD. A private key has to be without a password.",
        )
    if parts["login"] is None:
        return url, ""
    user, _, password = parts["login"].partition(":")
    return f"{parts['scheme']}://{user}@{parts['rest']}", unquote(password)
