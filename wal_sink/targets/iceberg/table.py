"""An Iceberg table at the version that was read last, and commits on exactly that version.

pyiceberg's own commits cannot be used. After a conflict pyiceberg repeats a commit on the newest version
without the condition on the branch (`Transaction._rebuild_snapshot_updates`). Such a commit would overwrite
the ledger row of another flusher. Here each commit has conditions of its own, and is requested once.

The ledger row of a query is in the summary of a snapshot without rows. The snapshot has a tag of its own. Two
other places are not safe:

- A property of the table changes in one commit with the rows. But no catalog has a condition on a property,
  so a REST catalog accepts the commits of two flushers at once.
- The summary of the snapshot with the rows is lost when that snapshot is expired, such as after a compaction.

A catalog compares the snapshot of a tag (`assert-ref-snapshot-id`) in one step with all changes of a commit,
and no clean-up removes a tagged snapshot. The tagged snapshot has no files, so it protects no old file from a
clean-up. Each change of the row adds a tagged snapshot and removes the former one. The main branch gets one
snapshot for each window.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Final

import msgspec
import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, write_manifest_list
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary, ancestors_of
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotsUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from wal_sink.model.ledger import LedgerRow
from wal_sink.targets.arrow_columns import with_parts
from wal_sink.targets.iceberg.catalog import Files, catalog_of, loaded
from wal_sink.targets.iceberg.options import IcebergOptions
from wal_sink.targets.staged_files import RowVersion, decode_ledger_row

FORMAT = 2
"""The version of Iceberg's table format that wal_sink writes."""

_CODEC: Final = "gzip"
"""The codec of manifests and manifest lists. It is also the default of Iceberg's Java library."""


class RefIs(AssertRefSnapshotId):  # type: ignore[misc]
    """The condition that a branch or tag names a certain snapshot, or does not exist.

    A REST server evaluates the condition. For other catalogs, pyiceberg calls `validate` before a commit.
    pyiceberg's own class fails if a table has no snapshot yet.
    """

    def validate(self, base_metadata: TableMetadata | None) -> None:
        """Compare the condition with the metadata.

        :raises CommitFailedException: the branch or tag names another snapshot.
        """
        reference = None if base_metadata is None else base_metadata.refs.get(self.ref)
        snapshot_id = None if reference is None else reference.snapshot_id
        if snapshot_id != self.snapshot_id:
            raise CommitFailedException(
                f"{self.ref} is at {snapshot_id}, not at {self.snapshot_id}"
            )


def arrow_types(columns: Schema, *, ids: bool = False) -> pa.Schema:
    """Convert an Iceberg schema to Arrow types.

    :param ids: True to add the ids of fields, as in the table's files.
    """
    schema = schema_to_pyarrow(columns, include_field_ids=ids)
    return pa.schema([with_parts(field, lambda part: part) for field in schema])


class IcebergTable:
    """The table that options name, in the version that was read last.

    :raises SchemaMismatch: there is no such table.
    """

    def __init__(self, options: IcebergOptions) -> None:
        self.name = options.table
        self._options = options
        self._table = loaded(catalog_of(options), options)

    def refresh(self) -> None:
        """Read the newest version.

        :raises SchemaMismatch: the table is gone.
        """
        # `Table.refresh` refuses a table that was created again under the same name.
        self._table = loaded(self._table.catalog, self._options)

    @property
    def table(self) -> Table:
        """The table as an object of pyiceberg, only for reads."""
        return self._table

    @property
    def files(self) -> Files:
        """The files of the table."""
        return Files(self._table.io)

    @property
    def metadata(self) -> TableMetadata:
        """The metadata of the version that was read."""
        return self._table.metadata

    @property
    def types(self) -> pa.Schema:
        """The columns as Arrow types."""
        return arrow_types(self._table.schema())

    @property
    def fingerprint(self) -> str:
        """The ids of table, schema and partitions. A commit is refused if one of these ids has changed."""
        metadata = self.metadata
        return f"{metadata.table_uuid}/{metadata.current_schema_id}/{metadata.default_spec_id}"

    # --- the ledger row ---------------------------------------------------------------------------

    def row(self, tag: str) -> RowVersion:
        """Return the ledger row under a tag, and the id of the snapshot that holds the row.

        The row is None if the table no longer has the rows that the ledger row counts.

        :raises CorruptLog: this version of wal_sink cannot read the row.
        """
        snapshot, row = self._stored(tag)
        version = None if snapshot is None else snapshot.snapshot_id
        return RowVersion(version, None if row is None else row.ledger)

    def _stored(self, tag: str) -> tuple[Snapshot | None, _Row | None]:
        ref = self.metadata.refs.get(tag)
        snapshot = None if ref is None else self.metadata.snapshot_by_id(ref.snapshot_id)
        if snapshot is None:
            return None, None
        text = (snapshot.summary and snapshot.summary[_ROW]) or ""
        row = decode_ledger_row(
            text, _Row, f"The ledger row in table {self.name}", f"the tag {tag}"
        )
        return snapshot, None if self._are_gone(row.rows) else row

    def _are_gone(self, rows: int | None) -> bool:
        """Return True if the table was replaced, or rolled back to a snapshot before the query's rows.

        Return False if too many snapshots have expired to detect such a change.

        :param rows: the id of the snapshot with the query's newest rows. None if the query has no rows yet.
        """
        head = self.metadata.current_snapshot()
        newest = None if rows is None else self.metadata.snapshot_by_id(rows)
        if head is None or newest is None:
            return rows is not None and head is None
        for ancestor in ancestors_of(head, self.metadata):
            if ancestor.snapshot_id == rows:
                return False
        return head.sequence_number < newest.sequence_number or ancestor.parent_snapshot_id is None

    # --- commits ----------------------------------------------------------------------------------

    def commit(
        self, tag: str, snapshot: int, new: LedgerRow, files: Sequence[DataFile], epochs: str
    ) -> None:
        """Add files and replace the ledger row that was read, in one commit.

        :param snapshot: a new id for the snapshot with the row.
        :param epochs: the epochs of the files' rows, such as "3 to 7", for the summary of their snapshot.
        :raises CommitFailedException: a conflict (`is_conflict`).
        """
        base = self.metadata
        former, row = self._stored(tag)
        replaced = None if former is None else former.snapshot_id
        rows = None if row is None else row.rows
        sequence = base.next_sequence_number()
        updates: list[TableUpdate] = []
        written: list[str] = []
        if files:
            summary = {"wal-sink.query": tag, "wal-sink.epochs": epochs}
            updates, written, rows = self._snapshot_of_rows(files, summary)
            sequence += 1
        ledger = self._snapshot_of_ledger(snapshot, replaced, sequence, _Row(ledger=new, rows=rows))
        written.append(ledger.manifest_list)
        updates += [
            AddSnapshotUpdate(snapshot=ledger),
            SetSnapshotRefUpdate(
                ref_name=tag,
                type=SnapshotRefType.TAG,
                snapshot_id=snapshot,
                max_ref_age_ms=_MAX_REF_AGE_MS,
            ),
        ]
        if replaced is not None:
            updates.append(RemoveSnapshotsUpdate(snapshot_ids=[replaced]))
        requirements: tuple[TableRequirement, ...] = (
            AssertTableUUID(uuid=base.table_uuid),
            AssertCurrentSchemaId(current_schema_id=base.current_schema_id),
            AssertDefaultSpecId(default_spec_id=base.default_spec_id),
            RefIs(ref=tag, snapshot_id=replaced),
            RefIs(ref=MAIN_BRANCH, snapshot_id=self._head()),
        )
        self.files.sync(written)
        self._table._do_commit(tuple(updates), requirements)  # noqa: SLF001 -- one request, with these conditions
        if former:
            with contextlib.suppress(Exception):  # an empty file that no snapshot names
                self._table.io.delete(former.manifest_list)

    def _snapshot_of_rows(
        self, files: Sequence[DataFile], summary: dict[str, str]
    ) -> tuple[list[TableUpdate], list[str], int]:
        """Write the manifests of a snapshot that adds files to the main branch, by pyiceberg's own producer.

        :returns: the updates for the commit, the paths of the manifests, and the id of the snapshot.
        """
        transaction = self._table.transaction()
        append = transaction._append_snapshot_producer(summary)  # noqa: SLF001 -- merges manifests if a table property says so
        append._compression = _CODEC  # noqa: SLF001 -- pyiceberg may lack the codec of the table
        for file in files:
            file.spec_id = self.metadata.default_spec_id
            append.append_data_file(file)
        updates, _ = append._commit()  # noqa: SLF001 -- `commit` would add pyiceberg's conditions
        written = append._written_manifests + append._written_manifest_lists  # noqa: SLF001
        return list(updates), written, append.snapshot_id

    def _snapshot_of_ledger(
        self, snapshot: int, replaced: int | None, sequence: int, row: _Row
    ) -> Snapshot:
        """Write the empty manifest list of a snapshot with the ledger row, and return the snapshot.

        :param replaced: the id of the former snapshot. None if the query has no ledger row yet.
        """
        location = self._table.location_provider().new_metadata_location(
            f"wal-sink-{snapshot}-{sequence}.avro"
        )
        output = self._table.io.new_output(location)
        with write_manifest_list(FORMAT, output, snapshot, replaced, sequence, _CODEC):
            pass  # no files
        return Snapshot(
            snapshot_id=snapshot,
            # A catalog refuses an old sequence number only for a snapshot with a parent.
            parent_snapshot_id=replaced or self._head(),
            sequence_number=sequence,
            manifest_list=location,
            summary=Summary(Operation.APPEND, **{_ROW: msgspec.json.encode(row).decode()}),
            schema_id=self.metadata.current_schema_id,
        )

    def _head(self) -> int | None:
        ref = self.metadata.refs.get(MAIN_BRANCH)
        return None if ref is None else ref.snapshot_id


# --- the ledger row in a snapshot ------------------------------------------------------------------

_ROW = "wal-sink.ledger"
"""The name under which a snapshot's summary has the ledger row."""

_MAX_REF_AGE_MS = 2**63 - 1
"""The age limit of the tag, so high that the tag never expires. Without this value the table's property
`history.expire.max-ref-age-ms` would limit the age."""


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    """What the property `_ROW` of a snapshot's summary contains."""

    ledger: LedgerRow
    rows: int | None = None
    """The id of the snapshot with the query's newest rows. None if the query has no rows yet."""


def tag(query_id: str) -> str:
    """Return the name of the tag for a query's ledger row."""
    return "wal_sink_" + re.sub(r"[^A-Za-z0-9_-]", lambda m: f".{ord(m[0]):x}.", query_id)
