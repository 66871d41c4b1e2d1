"""A Delta table at one version: its schema, its files, and commits on exactly this version.

The undocumented names of deltalake in this module have a canary in `tests/delta/test_commits.py`.
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
from wal_sink.targets.arrow_tables import plain, renamed
from wal_sink.targets.base import ErrorClass
from wal_sink.targets.cdc import flag_name
from wal_sink.targets.ddl import quote
from wal_sink.targets.delta.columns import is_absolute
from wal_sink.targets.staged_files import kind_of_access, sync

_FEATURES_OF_VERSION: dict[int, Collection[str]] = {6: ("identityColumns",)}
"""Further features that a version of the protocol requires of writers. Newer versions name their features."""

_MAPPING = "delta.columnMapping.mode"

_UNWRITTEN = re.compile(r'VariantType|PrimitiveType\("void"\)')
"""Types that wal_sink does not write, as delta-rs prints them."""

_NOT_ENCODED = "!$&'()+,-.:;=@_~/"
"""Characters, beside letters and digits, that delta-rs (1.6.6) does not encode in the path of a removed
file."""

_USUAL_PATH = r"^[A-Za-z0-9_=.-][A-Za-z0-9_=./-]*$"
"""A path that delta-rs removes unchanged. Most paths match, and only others are compared one by one."""

_CONFLICT = "Failed to commit transaction"
"""The beginning of delta-rs' error text for a commit that conflicts with another commit."""

RANDOM_PREFIXES = "delta.randomizeFilePrefixes"
"""The property with which delta-spark names no folder by the values of a partition."""

MERGED, DELETED = "wal_sink:merged", "wal_sink:deleted"
"""Columns of rows for `Table.merge`: True if a row replaces the row of its key, and True if it deletes that
row."""


def why_not_removable(path: str) -> str:
    """Return why delta-rs cannot remove a file. Empty if it can.

    delta-spark writes letters above 0x7F into the log unchanged. delta-rs removes such a file by an encoded
    path, which names no file. So the file stays, and the table has its rows twice.

    :param path: the file's path in the table's log.
    """
    if is_absolute(path):
        return "its path is absolute, as in a shallow clone"
    removed = percent_encoded(unquote(path), safe=_NOT_ENCODED)
    return "" if removed == path else f"the commit would remove {removed}, which is not a file"


class Table:
    """The table at a path. delta-rs keeps the version that it has read. `refresh` reads later commits.

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
        # A table that was deleted and created again has a new log, on which the old state must not continue.
        if self.files.missing([_commit_file(self.version)]):
            self._table = self._opened()

    def transaction_version(self, app_id: str) -> int | None:
        """Return the newest version of a writer's transactions. None if there is none."""
        return self._table.transaction_version(app_id)

    def commit(self, files: Sequence[AddAction], transactions: dict[str, int], reason: str) -> None:
        """Add files in one commit, unless a commit since `refresh` has one of the transactions.

        delta-rs reads the commits since then, and ignores those of other writers.

        :param reason: the text in the table's history.
        :raises CommitFailedError: a conflict (`is_conflict`), or delta-rs does not write such a table.
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
        """Replace or delete the rows of keys, and add rows of other keys, in one commit, as `commit` does.

        It conflicts with a commit of another writer that changes the same partitions.

        :param rows: all columns of the table, `MERGED` (at most one row of a key), `DELETED`, and flags of
            unavailable cells, which keep their values.
        :param event: the column with the event time: a row of the table with a later time stays.
        :raises SchemaMismatch: another writer has added a file that delta-rs cannot remove.
        :raises CommitFailedError: a conflict (`is_conflict`), or delta-rs does not write such a table.
        """
        self.refuse_unremovable()  # at the version on which the commit is made
        exact = [plain(field).with_nullable(True) for field in self.types]
        flags = [*rows.schema][len(exact) :]
        rows = renamed(rows.to_batches(), pa.schema([*exact, *flags]))
        names = [quote(field.name) for field in exact]
        same = " AND ".join(f"t.{quote(key)} = s.{quote(key)}" for key in keys)
        merger = self._table.merge(
            rows,
            f"s.{quote(MERGED)} AND {same}",
            source_alias="s",
            target_alias="t",
            streamed_exec=False,  # so delta-rs skips files by the bounds of the rows
            commit_properties=_properties(reason, transactions),
        )
        values = {name: f"s.{name}" for name in names}
        changes = dict(values)
        for field in exact:
            if (flag := flag_name(field.name)) in rows.column_names:
                name = quote(field.name)
                changes[name] = f"CASE WHEN s.{quote(flag)} THEN t.{name} ELSE s.{name} END"
        deleted = f"s.{quote(DELETED)}"
        new_time, old_time = f"s.{quote(event)}", f"t.{quote(event)}"
        is_later = f"{old_time} IS NULL OR {new_time} >= {old_time}" if event else None
        merger.when_matched_delete(deleted).when_matched_update(changes, is_later)
        read = self.version
        merger.when_not_matched_insert(values, f"NOT {deleted}").execute()
        if self.version == read:  # delta-rs makes no commit if no row changes, as by deletes alone
            self.commit([], transactions, reason)

    def known_keys(self, rows: pa.Table, keys: Sequence[str]) -> set[tuple[object, ...]]:
        """Return the keys that both `rows` and the read version of the table have, and perhaps more keys."""
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
        """Make the version that was read survive a power loss, since its writer may have died before that."""
        # A clean-up after a checkpoint may have deleted the file.
        self.files.sync([_commit_file(self.version)], may_be_gone=True)

    @property
    def version(self) -> int:
        """The version of the table that was read."""
        return self._table.version()

    @property
    def id(self) -> str:
        """The id of the table. CREATE OR REPLACE gives it another one."""
        return str(self._table.metadata().id)

    @property
    def types(self) -> pa.Schema:
        """The columns as Arrow types, with metadata.

        A null type means that wal_sink does not write the column.
        """
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
    def maps_columns(self) -> bool:
        """True if columns have other names in files (column mapping)."""
        return self.properties.get(_MAPPING, "none") != "none"

    @property
    def partitioned_by(self) -> list[str]:
        """The partition columns, in their order."""
        return list(self._table.metadata().partition_columns)

    @property
    def fingerprint(self) -> str:
        """A digest of everything that shapes the files of the table."""
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
        """Check that delta-rs can remove each file of the version that was read.

        :raises SchemaMismatch: names a file that delta-rs cannot remove.
        """
        paths = pa.table(self._table.get_add_actions())["path"]  # paths as in the log
        unusual = paths.filter(pc.invert(pc.match_substring_regex(paths, _USUAL_PATH)))
        for path in unusual.to_pylist():
            if problem := why_not_removable(path):
                place = f"delta.`{self.path}`"
                rewrite = f"INSERT OVERWRITE {place} SELECT * FROM {place}"  # noqa: S608 -- only shown
                raise SchemaMismatch(
                    f"The Delta table {self.path} takes no rows by key: delta-rs cannot remove the file"
                    f" {path}: {problem}.",
                    "Let Spark write the files again, with names that delta-rs can remove:"
                    f"\nALTER TABLE {place} SET TBLPROPERTIES ('{RANDOM_PREFIXES}' = 'true');"
                    f"\n{rewrite};",
                )

    def _opened(self) -> DeltaTable:
        with _table_is_there(self.path):
            return DeltaTable(self.path, storage_options=self._options)


def _properties(reason: str, transactions: dict[str, int], **more: Any) -> CommitProperties:
    """Return the properties of a commit.

    :param transactions: the version of each writer's transaction.
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
    """Return "retry" for a conflict and for a store that does not answer, "fatal" for any other error."""
    if is_conflict(error):
        return "retry"
    return kind_of_access(error) if isinstance(error, OSError) else "fatal"


# --- files ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _table_is_there(path: str) -> Iterator[None]:
    """Convert delta-rs' error for a missing table to SchemaMismatch, in this context."""
    try:
        yield
    except TableNotFoundError as error:
        raise SchemaMismatch(
            f"There is no Delta table at {path}.", "Create it, or correct option delta.path."
        ) from error


class Files:
    """Writes, reads and deletes whole files. Paths are relative to the table's folder.

    Access goes through delta-rs, with its storage options. The public `DeltaStorageHandler` hands Arrow a
    stream that refuses what Arrow writes (1.6.6 with pyarrow 26: 'Buffer' object is not an instance of
    'bytes'). Its inner handler takes bytes.

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
        """Make files in a local folder survive a power loss, since delta-rs does not sync them.

        An object store acknowledges only durable objects.

        :param may_be_gone: True if somebody may have deleted a file since it was listed.
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
