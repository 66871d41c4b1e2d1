"""The options of the Iceberg target."""

from __future__ import annotations

import difflib
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from wal_sink.errors import OptionError
from wal_sink.options import COLUMN, CONNECTS, SECRET, SHAPES, about, secret_parameter
from wal_sink.targets.ddl import TableOptions, spark_table

_CATALOG = "iceberg.catalog."
_PROPERTY = f"{_CATALOG}{COLUMN}"
_OWN = {"name", "type", "uri", "warehouse"}


class IcebergOptions(TableOptions, frozen=True, kw_only=True):
    """Options `table` and `iceberg.*`."""

    table: Annotated[
        str, about("table, with its namespace, such as shop.orders", SHAPES, min_length=1)
    ]
    catalog: Annotated[
        str,
        about(
            "name of the catalog in pyiceberg's own configuration, whose properties count unless an option"
            " sets them",
            CONNECTS,
            SHAPES,
            min_length=1,
        ),
    ] = msgspec.field(name="iceberg.catalog.name", default="default")
    type: Annotated[str, about("type of the catalog: rest, sql, glue, hive", CONNECTS)] = (
        msgspec.field(name="iceberg.catalog.type", default="")
    )
    uri: Annotated[str, about("address of the catalog, without a password", CONNECTS)] = (
        msgspec.field(name="iceberg.catalog.uri", default="")
    )
    warehouse: Annotated[
        str, about("location of the catalog's tables, such as s3://lake", CONNECTS)
    ] = msgspec.field(name="iceberg.catalog.warehouse", default="")
    properties: Annotated[
        dict[str, str],
        about(
            "any other property of pyiceberg's catalog or file access, such as iceberg.catalog.credential"
            " or iceberg.catalog.s3.region; it is passed to pyiceberg unchanged",
            CONNECTS,
            SECRET,
        ),
    ] = msgspec.field(name=_PROPERTY, default_factory=dict)
    merge_schema: Annotated[
        bool,
        about(
            "whether columns of the DataFrame that the table lacks are added when a query starts",
            SHAPES,
        ),
    ] = msgspec.field(name="iceberg.mergeSchema", default=False)

    def __post_init__(self) -> None:
        """Check the options against each other.

        :raises OptionError: the table has no namespace, a property of the catalog is misspelt, the catalog's
            address has a password, or an option has no effect. The log would store the password.
        """
        _ = self.layout  # raises the error of a repeated column, or of an option without effect
        if not all(self.identifier) or len(self.identifier) < 2:
            raise OptionError(
                f"Option table is {self.table}, which has no namespace.",
                "Write namespace.table, such as shop.orders.",
            )
        for name in self.properties.keys() - _OWN:
            for near in difflib.get_close_matches(name, _OWN, n=1, cutoff=0.7):
                raise OptionError(
                    f"Unknown option {_CATALOG}{name}.", f"Did you mean {_CATALOG}{near}?"
                )
        try:
            password = urlsplit(self.uri).password
        except (
            ValueError
        ) as error:  # the error does not repeat the address, which may have a password
            raise OptionError(
                f"Option iceberg.catalog.uri is not an address: {error}.",
                "Write the address of the catalog, such as http://catalog:8181.",
            ) from None
        if password is not None or secret_parameter(self.uri):
            # The error does not repeat the address, which has the password.
            raise OptionError(
                "Option iceberg.catalog.uri has a password in it, and the address is written to the log.",
                "Give the whole address in the environment of the driver of Spark and of every flusher, as"
                f" PYICEBERG_CATALOG__{self.catalog.upper()}__URI. If it was in the option of an earlier"
                " run, replace the password.",
            )

    @property
    def identifier(self) -> tuple[str, ...]:
        """The parts of the table's name."""
        return tuple(self.table.split("."))

    @property
    def quoted(self) -> str:
        """The table's name, quoted for Spark's SQL."""
        return spark_table(self.identifier)

    @property
    def catalog_properties(self) -> dict[str, str]:
        """The properties of the catalog that options set. These override pyiceberg's own configuration."""
        named = {"type": self.type, "uri": self.uri, "warehouse": self.warehouse}
        return self.properties | {name: value for name, value in named.items() if value}
