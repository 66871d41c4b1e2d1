"""A Delta table at one version: its schema, its files, and commits on exactly this version.

`tests/delta/test_commits.py` fails if a release of deltalake changes an undocumented name that is used here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote as percent_encoded
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Schema, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction
from pyarrow.fs import FileType

from wal_sink.errors import SchemaMismatch
from wal_sink.targets.arrow_tables import plain, refuse_table, renamed
from wal_sink.targets.base import ErrorClass
from wal_sink.targets.cdc import flag_name
from wal_sink.targets.ddl import quote
from wal_sink.targets.delta.columns import is_absolute
from wal_sink.targets.staged_files import kind_of_access, sync

_FEATURES_OF_VERSION: dict[int, Collection[str]] = {6: ("identityColumns",)}
"""By version of Delta's protocol, the features that it requires of writers. Version 7 lists them."""

_UNWRITTEN = re.compile(r'VariantType|PrimitiveType\("void"\)')
"""The types that wal_sink does not write, in delta-rs' words."""

_NOT_ENCODED = "!$&'()+,-.:;=@_~/"
"""The characters, beside letters and digits, that delta-rs (1.6.6) does not percent-encode in the path of a
removed file."""

_USUAL_PATH = r"^[A-Za-z0-9_=.-][A-Za-z0-9_=./-]*$"
"""A path that delta-rs writes unchanged into the log. Only other paths are checked one by one."""

_CONFLICT = "Failed to commit transaction"
"""The first words of delta-rs' error for a commit that conflicts with another commit."""

RANDOM_PREFIXES = "delta.randomizeFilePrefixes"
"""The property with which delta-spark gives the folders of partitions random names."""

MERGED, DELETED = "wal_sink:merged", "wal_sink:deleted"
"""Columns of the rows for `Table.merge`. `MERGED` is True if a row replaces the row of its key. `DELETED`
is True if it deletes the row of its key."""


def why_not_removable(path: str) -> str:
    """Return why a merge of delta-rs cannot remove a file. Empty if it can.

    delta-spark does not percent-encode a letter such as "ä" in the path of a file, and delta-rs does. So
    delta-rs would remove a path that does not exist. The old file would stay, and the table would have its
    rows twice.

    :param path: the file's path in the table's log.
    """
    if is_absolute(path):
        return "its path is absolute, as in a shallow clone"
    removed = percent_encoded(unquote(path), safe=_NOT_ENCODED)
    return "" if removed == path else f"the commit would remove {removed}, which is not a file"


class Table:
    """The table at a path, in the version that was read last.

    :raises SchemaMismatch: there is no table.
    """

    def __init__(self, path: str, options: dict[str, str] | None, files: Files) -> None:
        self.path = path
        self._options = options
        self.files = files
        self._table = self._opened()

    def refresh(self) -> None:
        """Read the newest version.

        :raises SchemaMismatch: the table is gone.
        """
        self._table.update_incremental()
        # A table that was deleted and created again has a new log, to which the old version does not belong.
        if self.files.missing([_commit_file(self.version)]):
            self._table = self._opened()

    def transaction_version(self, app_id: str) -> int | None:
        """Return the version that a writer (`app_id`) has set last. None if it has set no version."""
        return self._table.transaction_version(app_id)

    def commit(self, files: Sequence[AddAction], transactions: dict[str, int], reason: str) -> None:
        """Add files in one commit.

        It conflicts with a commit since `refresh` that sets the version of one of the same writers. Other
        commits do not matter.

        :param transactions: by writer, the version that the commit sets.
        :param reason: the text in the table's history.
        :raises CommitFailedError: a conflict (`is_conflict`), or delta-rs cannot write the table.
        """
        self._table.create_write_transaction(
            list(files),
            "append",
            self._table.schema(),
            partition_by=self.partitioned_by,
            commit_properties=_properties(reason, transactions, isBlindAppend=True),
        )

    def merge(
        self,
        rows: pa.Table,
        keys: Sequence[str],
        transactions: dict[str, int],
        reason: str,
        event: str = "",
    ) -> None:
        """Replace, delete and add rows by their key in one commit.

        It conflicts with the same commits as `commit`, and with each commit that changes the same partitions.

        :param rows: the table's columns, `MERGED`, `DELETED`, and flags of unavailable cells, which keep
            their values in the table. No two merged rows have the same key.
        :param event: the column with the event time. A row of the table with a later time stays.
        :raises SchemaMismatch: another writer has added a file that delta-rs cannot remove.
        :raises CommitFailedError: a conflict (`is_conflict`), or delta-rs cannot write the table.
        """
        self.refuse_unremovable()  # another writer may have added files since
        exact = [plain(field).with_nullable(True) for field in self.types]
        flags = [*rows.schema][len(exact) :]
        rows = renamed(rows.to_batches(), pa.schema([*exact, *flags]))
        same = " AND ".join(f"t.{quote(key)} = s.{quote(key)}" for key in keys)
        merger = self._table.merge(
            rows,
            f"s.{quote(MERGED)} AND {same}",
            source_alias="s",
            target_alias="t",
            streamed_exec=False,  # so delta-rs skips files by the bounds of the rows
            commit_properties=_properties(reason, transactions),
        )
        values = {quote(field.name): f"s.{quote(field.name)}" for field in exact}
        changes = values | {
            quote(name): f"CASE WHEN s.{quote(flag)} THEN t.{quote(name)} ELSE s.{quote(name)} END"
            for name in rows.column_names
            if (flag := flag_name(name)) in rows.column_names
        }
        deleted, time = f"s.{quote(DELETED)}", quote(event)
        is_later = f"t.{time} IS NULL OR s.{time} >= t.{time}" if event else None
        merger.when_matched_delete(deleted).when_matched_update(changes, is_later)
        read = self.version
        merger.when_not_matched_insert(values, f"NOT {deleted}").execute()
        if self.version == read:  # delta-rs commits nothing if no row changes
            self.commit([], transactions, reason)

    def known_keys(self, rows: pa.Table, keys: Sequence[str]) -> set[tuple[object, ...]]:
        """Return the keys of the table whose first column has a value of `rows`."""
        listed = ", ".join(map(quote, keys))
        query = QueryBuilder().register("t", self._table).execute(f"SELECT {listed} FROM t")  # noqa: S608
        matches = set[tuple[object, ...]]()
        for batch in pa.RecordBatchReader.from_stream(query):
            columns = [batch[key].cast(rows[key].type) for key in keys]
            same = pc.is_in(columns[0], rows[keys[0]].combine_chunks())
            values = [column.filter(same).to_pylist() for column in columns]
            matches.update(zip(*values, strict=True))
        return matches

    def add_columns(self, columns: pa.Schema) -> None:
        """Add columns in one commit."""
        self._table.alter.add_columns(Schema.from_arrow(columns).fields)

    def sync(self) -> None:
        """Make the version that was read survive a power loss. Its writer may have died before it did so."""
        # A clean-up of the log may have deleted the commit's file.
        self.files.sync([_commit_file(self.version)], may_be_gone=True)

    @property
    def version(self) -> int:
        """The number of the version that was read."""
        return self._table.version()

    @property
    def id(self) -> str:
        """The id of the table, which CREATE OR REPLACE changes."""
        return str(self._table.metadata().id)

    @property
    def types(self) -> pa.Schema:
        """The types of the columns, with metadata. A null type is a type that wal_sink does not write."""
        schema = self._table.schema()
        unwritten = {field.name for field in schema.fields if _UNWRITTEN.search(str(field.type))}
        columns = pa.schema(schema.to_arrow())
        return pa.schema([f.with_type(pa.null()) if f.name in unwritten else f for f in columns])

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties of the table."""
        properties: Mapping[str, str] = self._table.metadata().configuration
        return properties

    @property
    def features(self) -> Collection[str]:
        """The features that the table requires of its writers."""
        protocol = self._table.protocol()
        if protocol.writer_features is not None:
            return list(protocol.writer_features)
        return _FEATURES_OF_VERSION.get(protocol.min_writer_version, ())

    @property
    def partitioned_by(self) -> list[str]:
        """The partition columns, in their order."""
        return list(self._table.metadata().partition_columns)

    @property
    def fingerprint(self) -> str:
        """A digest of the table's id, schema, partition columns, properties and features."""
        metadata, protocol = self._table.metadata(), self._table.protocol()
        shapes = [
            metadata.id,
            json.loads(self._table.schema().to_json()),
            metadata.partition_columns,
            sorted(metadata.configuration.items()),
            sorted(protocol.writer_features or ()),
        ]
        return hashlib.sha256(json.dumps(shapes, sort_keys=True).encode()).hexdigest()[:32]

    def refuse_unremovable(self) -> None:
        """Refuse a table with a file that delta-rs cannot remove (`why_not_removable`).

        :raises SchemaMismatch: the version that was read has such a file.
        """
        paths = pa.table(self._table.get_add_actions())["path"]  # paths as in the log
        unusual = paths.filter(pc.invert(pc.match_substring_regex(paths, _USUAL_PATH)))
        for path in unusual.to_pylist():
            if problem := why_not_removable(path):
                place = f"delta.`{self.path}`"
                rewrite = f"INSERT OVERWRITE {place} SELECT * FROM {place}"  # noqa: S608 -- only shown
                remedy = (
                    "Let Spark write the files again, with names that delta-rs can remove:"
                    f"\nALTER TABLE {place} SET TBLPROPERTIES ('{RANDOM_PREFIXES}' = 'true');"
                    f"\n{rewrite};"
                )
                self.refuse_upserts(
                    [(f"delta-rs cannot remove the file {path}: {problem}", remedy)]
                )

    def refuse_upserts(self, obstacles: Iterable[tuple[str, str]]) -> None:
        """Refuse to replace rows of the table because of the first obstacle.

        :param obstacles: the text of each obstacle, and its remedy.
        :raises SchemaMismatch: there is an obstacle.
        """
        refuse_table(f"The Delta table {self.path}", obstacles, "takes no rows by key")

    def _opened(self) -> DeltaTable:
        with _table_is_there(self.path):
            return DeltaTable(self.path, storage_options=self._options)


def _properties(reason: str, transactions: dict[str, int], **more: Any) -> CommitProperties:
    """Return the properties of a commit.

    :param transactions: by writer, the version that the commit sets.
    """
    return CommitProperties(
        custom_metadata={"userMetadata": f"wal_sink: {reason}", **more},
        app_transactions=[Transaction(app, version) for app, version in transactions.items()],
    )


def _commit_file(version: int) -> str:
    return f"_delta_log/{version:020}.json"


def is_conflict(error: Exception) -> bool:
    """Return True if a commit conflicts with another commit, or with itself after a lost answer."""
    return isinstance(error, CommitFailedError) and str(error).startswith(_CONFLICT)


def classify(error: Exception) -> ErrorClass:
    """Return "retry" for a conflict or a store that does not answer, and "fatal" for any other error."""
    if is_conflict(error):
        return "retry"
    return kind_of_access(error) if isinstance(error, OSError) else "fatal"


# --- files ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _table_is_there(path: str) -> Iterator[None]:
    try:
        yield
    except TableNotFoundError as error:
        raise no_table(path) from error


def no_table(path: str, create: str = "create the table.") -> SchemaMismatch:
    """Return the error for a missing table.

    :param create: how to create the table. Continues "Correct option delta.path, or ".
    """
    return SchemaMismatch(
        f"There is no Delta table at {path}.", f"Correct option delta.path, or {create}"
    )


class Files:
    """Writes, reads and deletes whole files through delta-rs. Paths are relative to the table's folder.

    The public `DeltaStorageHandler` (1.6.6) refuses the buffers that Arrow (26) writes. Its inner handler,
    which this class uses, takes bytes.

    :raises SchemaMismatch: the path is a local folder that does not exist.
    """

    def __init__(self, path: str, options: dict[str, str] | None) -> None:
        with _table_is_there(path):
            self._storage: Any = DeltaStorageHandler(path, options)._handler  # noqa: SLF001
        self._folder = _local(path)

    def write(self, path: str, data: bytes) -> None:
        """Create a file. `sync` makes it durable."""
        output = self._storage.open_output_stream(path, None)
        output.write(data)
        output.close()

    def read(self, path: str) -> bytes:
        """Return a file's content.

        :raises FileNotFoundError: the file is missing.
        """
        file = self._storage.open_input_file(path)
        return bytes(file.read(file.size()))

    def delete(self, path: str) -> None:
        """Delete a file that may be missing."""
        try:
            self._storage.delete_file(path)
        except FileNotFoundError:
            return

    def missing(self, paths: Iterable[str]) -> list[str]:
        """Return the paths whose files are missing."""
        listed = list(paths)
        infos = self._storage.get_file_info(listed)
        return [
            path for path, info in zip(listed, infos, strict=True) if info.type == FileType.NotFound
        ]

    def sync(self, paths: Iterable[str], *, may_be_gone: bool = False) -> None:
        """Make files in a local folder survive a power loss. An object store has only durable objects.

        :param may_be_gone: True to ignore a missing file, which somebody has deleted meanwhile.
        :raises FileNotFoundError: a file is missing.
        """
        if self._folder is not None:
            sync([self._folder / path for path in paths], may_be_gone=may_be_gone)


def _local(path: str) -> Path | None:
    """Return the folder of a path or a URL `file:`. None for another store."""
    if "://" not in path:
        return Path(path)
    parts = urlsplit(path)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None
