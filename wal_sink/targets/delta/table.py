"""A Delta table at one version: its schema, its files, and commits on exactly this version.

`tests/delta/test_commits.py` fails if a release of deltalake changes an undocumented name that is used here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from wal_sink.targets.arrow_columns import plain, refuse_table, renamed
from wal_sink.targets.base import ErrorClass
from wal_sink.targets.cdc import flag_name
from wal_sink.targets.ddl import quote
from wal_sink.targets.delta.files import Files, explained_missing_table, not_removable
from wal_sink.targets.staged_files import kind_of_access

_FEATURES_OF_VERSION: dict[int, Collection[str]] = {6: ("identityColumns",)}
"""By version of Delta's protocol, the features that it requires of writers. A table of version 7 lists its
features itself."""

_UNWRITTEN = re.compile(r'VariantType|PrimitiveType\("void"\)')
"""The types that wal_sink does not write, in delta-rs' words."""

_CONFLICT = "Failed to commit transaction"
"""The first words of delta-rs' error for a commit that conflicts with another commit."""

RANDOM_PREFIXES = "delta.randomizeFilePrefixes"
"""The property with which delta-spark gives the folders of partitions random names."""

DELETED = "wal_sink:deleted"
"""Column of the rows for `Table.merge`. It is True if a row deletes the row of its key."""


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
        # If the table was deleted and created again, its new log may lack this version's file.
        if self.files.missing([_commit_file(self.version)]):
            self._table = self._opened()

    def transaction_version(self, app_id: str) -> int | None:
        """Return the version that a writer (`app_id`) has set last. None if it has set no version."""
        return self._table.transaction_version(app_id)

    def commit(self, files: Sequence[AddAction], transactions: dict[str, int], reason: str) -> None:
        """Add files in one commit.

        The commit conflicts with any commit since `refresh` that sets the version of one of the same writers.
        It conflicts with no other commit.

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

        The commit conflicts with the same commits as in `commit`, and with each commit that changes the same
        partitions.

        :param rows: the table's columns, `DELETED`, and flags of unavailable cells. The table keeps its
            values for these cells. No two rows have the same key.
        :param event: the column with the event time. A row of the table with a later time is not replaced.
            Empty if there is no such column.
        :raises SchemaMismatch: another writer has added a file that delta-rs cannot remove.
        :raises CommitFailedError: a conflict (`is_conflict`), or delta-rs cannot write the table.
        """
        self.refuse_unremovable()  # another writer may have added such files
        exact = [plain(field).with_nullable(True) for field in self.types]
        flags = [*rows.schema][len(exact) :]
        rows = renamed(rows.to_batches(), pa.schema([*exact, *flags]))
        merger = self._table.merge(
            rows,
            " AND ".join(f"t.{quote(key)} = s.{quote(key)}" for key in keys),
            source_alias="s",
            target_alias="t",
            streamed_exec=False,  # otherwise delta-rs could not skip files by the bounds of the rows
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
        """Return the keys of the table's rows, as far as their first column has a value that `rows` contains.

        :param keys: the key columns.
        """
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
        """Make the version that was read survive a power loss."""
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
        """The types of the columns, with metadata; the null type if a column's type cannot be written."""
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
        self.refuse_upserts(self._about_files())

    def _about_files(self) -> Iterator[tuple[str, str]]:
        place = f"delta.`{self.path}`"
        rewrite = f"INSERT OVERWRITE {place} SELECT * FROM {place}"  # noqa: S608 -- only shown
        remedy = (
            "Let Spark write the files again, with names that delta-rs can remove:"
            f"\nALTER TABLE {place} SET TBLPROPERTIES ('{RANDOM_PREFIXES}' = 'true');"
            f"\n{rewrite};"
        )
        paths = pa.table(self._table.get_add_actions())["path"]  # percent-encoded, as in the log
        for path, problem in not_removable(paths):
            yield f"delta-rs cannot remove the file {path}: {problem}", remedy

    def refuse_upserts(self, obstacles: Iterable[tuple[str, str]]) -> None:
        """Refuse upserts into a table with an obstacle. The error names the first obstacle.

        :param obstacles: the text of each obstacle, and its remedy.
        :raises SchemaMismatch: there is an obstacle.
        """
        refuse_table(f"The Delta table {self.path}", obstacles, "takes no rows by key")

    def _opened(self) -> DeltaTable:
        with explained_missing_table(self.path):
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
    """Return True if an error says that a commit conflicts with another commit, or with itself.

    A commit conflicts with itself if its answer was lost and delta-rs repeats the request.
    """
    return isinstance(error, CommitFailedError) and str(error).startswith(_CONFLICT)


def classify(error: Exception) -> ErrorClass:
    """Return "retry" for a conflict or a store that does not answer, and "fatal" for any other error."""
    if is_conflict(error):
        return "retry"
    return kind_of_access(error) if isinstance(error, OSError) else "fatal"
