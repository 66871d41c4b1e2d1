"""Opens the catalog that options name, loads tables, accesses their files, and classifies errors."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from pyiceberg import exceptions as ice
from pyiceberg.catalog import Catalog, MetastoreCatalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.utils.config import Config, merge_config
from requests import Session
from sqlalchemy.exc import InterfaceError, OperationalError

from wal_sink.errors import SchemaMismatch, TargetUnavailable
from wal_sink.targets.base import ErrorClass
from wal_sink.targets.ddl import CREATE_TABLE
from wal_sink.targets.iceberg.options import IcebergOptions
from wal_sink.targets.staged_files import kind_of_access, sync

_WAITS_S = 10.0, 120.0
"""The seconds to wait for a connection to a REST catalog, and for an answer. After a time-out a commit may
still take effect."""


class _BoundedRestCatalog(RestCatalog):  # type: ignore[misc]
    """A REST catalog with time-outs. Without time-outs the flush might wait forever, and log nothing."""

    def _config_headers(self, session: Session) -> None:
        super()._config_headers(session)  # called for each new session, before its first request
        session.request = functools.partial(session.request, timeout=_WAITS_S)  # type: ignore[method-assign]


def catalog_of(options: IcebergOptions) -> Catalog:
    """Open the catalog that options name.

    :raises Exception: an error of pyiceberg, for `classify`.
    """
    name, options_of_catalog = options.catalog, options.catalog_properties
    properties: Any = merge_config(Config().get_catalog_config(name) or {}, options_of_catalog)
    kind, uri = str(properties.get("type", "")).lower(), str(properties.get("uri", ""))
    if (
        uri.startswith("http")
        and kind in ("", "rest")
        and "py-catalog-impl" not in options_of_catalog
    ):
        return _BoundedRestCatalog(name, **properties)
    catalog = load_catalog(name, **options_of_catalog)
    if isinstance(catalog, MetastoreCatalog):
        write = catalog._write_metadata  # noqa: SLF001 -- writes the metadata that the catalog names next

        def durably(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
            write(metadata, io, metadata_path)
            Files(io).sync([metadata_path])

        catalog._write_metadata = durably  # noqa: SLF001
    return catalog


def find(catalog: Catalog, options: IcebergOptions) -> Table | None:
    """Load the table. Return None if it does not exist."""
    try:
        return catalog.load_table(options.identifier)
    except (NoSuchTableError, NoSuchNamespaceError):
        return None


def loaded(catalog: Catalog, options: IcebergOptions) -> Table:
    """Load the table.

    :raises SchemaMismatch: there is no such table.
    """
    table = find(catalog, options)
    if table is None:
        raise no_table(options.table)
    return table


def refuse_catalog_in_name(catalog: Catalog, options: IcebergOptions) -> None:
    """Refuse a missing table if its name begins with the catalog's name, as names in Spark do.

    :raises SchemaMismatch: the name begins with the catalog's name, or the rest of the name is the name of a
        table.
    """
    first, *others = options.identifier
    name = ".".join(others)
    if len(others) > 1 and (
        first == options.catalog
        or find(catalog, msgspec.structs.replace(options, table=name)) is not None
    ):
        raise SchemaMismatch(
            f"There is no table {options.table} in the catalog, which reads {first} as a namespace.",
            f"Leave out the name of the catalog: set option table to {name}.",
        )


def no_table(name: str, statement: str = "") -> SchemaMismatch:
    """Return the error for a missing table.

    :param statement: the statement that creates the table. Empty if the table existed before.
    """
    make = f"set {CREATE_TABLE} to true, or create it by Spark:\n{statement}"
    return SchemaMismatch(
        f"There is no table {name} in the catalog.",
        f"Correct option table or iceberg.catalog.*; or {make if statement else 'restore the table.'}",
    )


# --- what errors mean -----------------------------------------------------------------------------

_PASSING: tuple[type[Exception], ...] = (
    TargetUnavailable,
    CommitFailedException,
    ice.CommitStateUnknownException,
    ice.ServerError,
    ice.ServiceUnavailableError,
    ice.TooManyRequestsError,
    ice.AuthorizationExpiredError,
    ice.WaitingForLockException,
    OperationalError,
    InterfaceError,
)
"""Errors that may pass by themselves."""

_OLD_SEQUENCE = "Cannot add snapshot with sequence number"
"""The error text with which some catalogs, such as SQL catalogs, report a conflict."""


def is_conflict(error: Exception) -> bool:
    """Return True if an error says that a commit conflicts with another commit, or with itself.

    A commit conflicts with itself if its answer was lost and the client repeats the request.
    """
    return isinstance(error, CommitFailedException) or (
        isinstance(error, ice.BadRequestError | ValueError) and _OLD_SEQUENCE in str(error)
    )


def classify(error: Exception) -> ErrorClass:
    """Return "retry" or "throttle" for a conflict or a catalog that does not answer, otherwise "fatal"."""
    if is_conflict(error) or isinstance(error, _PASSING):
        return "throttle" if isinstance(error, ice.TooManyRequestsError) else "retry"
    if isinstance(error, OSError):
        return "fatal" if isinstance(error, FileNotFoundError) else kind_of_access(error)
    # botocore, which raises transport errors of AWS, is only installed for catalogs of AWS.
    names = {class_.__name__ for class_ in type(error).__mro__}
    return "retry" if "BotoCoreError" in names else "fatal"


# --- files in folders -----------------------------------------------------------------------------


class Files:
    """The files of a table, by their locations."""

    def __init__(self, io: FileIO) -> None:
        self._io = io

    def delete(self, path: str) -> None:
        """Delete a file that may be missing."""
        with contextlib.suppress(FileNotFoundError):
            self._io.delete(path)

    def missing(self, paths: Iterable[str]) -> list[str]:
        """Return the paths whose files are missing."""
        return [path for path in paths if not self._io.new_input(path).exists()]

    def sync(self, paths: Iterable[str]) -> None:
        """Make files in local folders survive a power loss. Objects in an object store are durable."""
        parts = map(urlsplit, paths)
        # pyiceberg does not encode a `%` in a location, so the path is not decoded.
        sync(Path(part.path) for part in parts if part.scheme in ("file", ""))
