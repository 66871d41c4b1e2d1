"""A Delta table at one version: its schema, its log, and the reasons why it cannot be written exactly once.

A commit is made on exactly the version that was read. The undocumented names of deltalake in this module have
a canary in `tests/delta/test_commits.py`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote as percent_encoded
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import fields
from wal_sink.targets.arrow_tables import plain, renamed
from wal_sink.targets.base import ErrorClass
from wal_sink.targets.delta.columns import is_absolute
from wal_sink.targets.delta.files import Files, table_is_there
from wal_sink.targets.sql_text import quote
from wal_sink.targets.staged_files import kind_of_access
from wal_sink.targets.table_options import Layout
from wal_sink.targets.unavailable import flag_name

_KNOWN_FEATURES = {
    *("appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", "deletionVectors"),
    *("generatedColumns", "invariants", "timestampNtz", "v2Checkpoint"),
    *("variantType", "variantType-preview"),
}
"""Features with which delta-rs commits. They require nothing of a writer that appends files, or a column or
property shows the requirement. `test_feature_is_known_if_a_commit_succeeds` makes a commit with each."""

_FEATURES_OF_VERSION: dict[int, Collection[str]] = {6: ("identityColumns",)}
"""Further features that a version of the protocol requires of writers. Newer versions name their features."""

_DROPPED = ("rowTracking", "inCommitTimestamp", "materializePartitionColumns", "domainMetadata")
"""Features that Spark can drop, in the order in which it drops them. It drops neither clustering nor column
defaults. After the drop of a feature that readers must know, such as typeWidening, the table requires
checkpointProtection."""

_MAPPING = "delta.columnMapping.mode"
_TRANSACTION_RETENTION = "delta.setTransactionRetentionDuration"

_UNWRITTEN = re.compile(r'VariantType|PrimitiveType\("void"\)')
"""Types that wal_sink does not write, as delta-rs prints them."""

_UNWRITABLE_COLUMNS = {
    b"delta.generationExpression": "is generated",
    b"delta.identity.start": "is an identity",
    b"delta.invariants": "has an invariant",
}


class TableShape(NamedTuple):
    """The requirements of a table on its writers."""

    path: str
    types: pa.Schema
    """The columns. A null type means that wal_sink does not write the column."""
    properties: Mapping[str, str]
    features: Collection[str]
    partitioned_by: Collection[str] = ()


def refuse_unfit(table: TableShape, *, replaces: bool = False) -> None:
    """Check that a writer which knows columns and partitions only may add files.

    :param replaces: True if rows are replaced, too.
    :raises SchemaMismatch: names the reason, and a remedy.
    """
    for what, remedy in _obstacles(table):
        raise SchemaMismatch(f"The Delta table {table.path} cannot be written: {what}.", remedy)
    for what, remedy in _about_upserts(table) if replaces else ():
        raise SchemaMismatch(f"The Delta table {table.path} takes no rows by key: {what}.", remedy)


_APPEND_ONLY = "delta.appendOnly"
_BOUNDED, _MOST_BOUNDED = "delta.dataSkippingStatsColumns", "delta.dataSkippingNumIndexedCols"
_EXACT_DIGITS = 15
"""The digits of a double. delta-rs (1.6.6) writes the bounds of a decimal as doubles."""


def _about_upserts(table: TableShape) -> Iterator[tuple[str, str]]:
    alter = f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES"
    key_alone = f"{alter} ('{_BOUNDED}' = '…'), with the columns of the key"
    if table.properties.get(_APPEND_ONLY, "false").lower() == "true":
        yield (
            f"it is append-only ({_APPEND_ONLY})",
            f"{alter} ('{_APPEND_ONLY}' = 'false'); or set delta.mode to append.",
        )
    for field in table.types:
        if pt.is_null(field.type):
            yield (
                f"a row is replaced whole, and wal_sink does not write the type of {field.name}",
                "Drop that column, or set delta.mode to append.",
            )
    for field in _columns_with_bounds(table):
        if _has_inexact_bounds(field.type):
            what = (
                f"delta-rs rounds the bounds of {field.name}, a decimal of more than {_EXACT_DIGITS} digits,"
                " so readers that filter by it would miss rows"
            )
            none = f"('{_MOST_BOUNDED}' = '0')"
            yield (
                what,
                f"Let delta-rs write bounds of the key only: {key_alone}; or of no column: {none}.",
            )


def _has_inexact_bounds(type_: pa.DataType) -> bool:
    """Return True if delta-rs rounds the bounds of a type. It writes none for arrays and maps."""
    if pt.is_struct(type_):
        return any(_has_inexact_bounds(field.type) for field in fields(type_))
    return bool(pt.is_decimal(type_) and type_.precision > _EXACT_DIGITS)


def _columns_with_bounds(table: TableShape) -> list[pa.Field]:
    """Return the columns for whose values delta-rs may write bounds."""
    in_files = [field for field in table.types if field.name not in table.partitioned_by]
    if (listed := table.properties.get(_BOUNDED)) is not None:
        names = {name.strip().strip("`").partition(".")[0] for name in listed.split(",")}
        return [field for field in in_files if field.name in names]
    most = table.properties.get(_MOST_BOUNDED, "32")
    return in_files[: int(most)] if most.isdecimal() else in_files


def bounds_of_key(types: pa.Schema, layout: Layout) -> dict[str, str]:
    """Return the properties of a new table by which delta-rs writes bounds of the key only.

    A merge skips files by the bounds of the key. Bounds of other columns may be wrong: of a long decimal, or
    of a float that is not finite.
    """
    unbounded = (
        pt.is_boolean,
        pt.is_binary,
        pt.is_decimal,
    )  # Spark allows no boolean and no binary there
    names = [
        name
        for name in types.names
        if name in layout.key
        and name not in layout.partition
        and not any(is_kind(types.field(name).type) for is_kind in unbounded)
        and re.fullmatch(r"\w+", name)
    ]
    return {_BOUNDED: ",".join(names)} if names else {_MOST_BOUNDED: "0"}


def _obstacles(table: TableShape) -> Iterator[tuple[str, str]]:
    path = table.path
    copy = f"Write to a copy: {_to_copy(table)} and set delta.path to {path}-copy."
    for name, rule in table.properties.items():
        if name.startswith("delta.constraints."):
            short = name.removeprefix("delta.constraints.")
            yield (
                f"it has the constraint {short}, which nobody checks for added files",
                f"ALTER TABLE delta.`{path}` DROP CONSTRAINT {short}; and filter by .where('{rule}').",
            )
    if _TRANSACTION_RETENTION in table.properties:
        yield (
            f"its property {_TRANSACTION_RETENTION} drops old transactions, and with them the ledger",
            f"ALTER TABLE delta.`{path}` UNSET TBLPROPERTIES ('{_TRANSACTION_RETENTION}');",
        )
    for field in table.types:
        for key, what in _UNWRITABLE_COLUMNS.items():
            if key in (field.metadata or {}):
                yield f"its column {field.name} {what}", copy
    if unknown := sorted(set(table.features) - _KNOWN_FEATURES):
        drop = " ".join(
            f"ALTER TABLE delta.`{path}` DROP FEATURE {feature};"
            for feature in _DROPPED
            if feature in unknown
        )
        restore = (
            " If the feature is newer than the last rows, restore by Spark the version before it, n in"
            f" DESCRIBE HISTORY: SET spark.databricks.delta.restore.protocolDowngradeAllowed = true; RESTORE"
            f" TABLE delta.`{path}` TO VERSION AS OF n;"
        )
        yield (
            f"it requires features that wal_sink or delta-rs does not write: {', '.join(unknown)}",
            drop if {*unknown} <= {*_DROPPED} else f"{copy}{restore}",
        )


def _to_copy(table: TableShape) -> str:
    """Return Spark's statement that copies the rows to a table without requirements."""
    path, names = table.path, ", ".join(f"`{name}`" for name in table.partitioned_by)
    parts = f" PARTITIONED BY ({names})" if names else ""
    rows = f"SELECT * FROM delta.`{path}`"  # noqa: S608 -- only shown
    return f"CREATE TABLE delta.`{path}-copy` USING delta{parts} AS {rows};"


_NOT_ENCODED = "!$&'()+,-.:;=@_~/"
"""Characters, beside letters and digits, that delta-rs (1.6.6) does not encode in the path of a removed
file."""

_USUAL_PATH = r"^[A-Za-z0-9_=.-][A-Za-z0-9_=./-]*$"
"""A path that delta-rs removes unchanged. Most paths match, and only others are compared one by one."""


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


RANDOM_PREFIXES = "delta.randomizeFilePrefixes"
"""The property with which delta-spark names no folder by the values of a partition."""

MERGED, DELETED = "wal_sink:merged", "wal_sink:deleted"
"""Columns of rows for `Table.merge`: True if a row replaces the row of its key, and True if it deletes that
row."""


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
            commit_properties=CommitProperties(
                custom_metadata={"userMetadata": f"wal_sink: {reason}", "isBlindAppend": True},
                app_transactions=[Transaction(app, v) for app, v in transactions.items()],
            ),
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
        rows = renamed(rows.to_batches(), pa.schema([*exact, *[*rows.schema][len(exact) :]]))
        names = [quote(field.name) for field in exact]
        same = " AND ".join(f"t.{quote(key)} = s.{quote(key)}" for key in keys)
        merger = self._table.merge(
            rows,
            f"s.{quote(MERGED)} AND {same}",
            source_alias="s",
            target_alias="t",
            streamed_exec=False,  # so delta-rs skips files by the bounds of the rows
            commit_properties=CommitProperties(
                custom_metadata={"userMetadata": f"wal_sink: {reason}"},
                app_transactions=[Transaction(app, v) for app, v in transactions.items()],
            ),
        )
        values = {name: f"s.{name}" for name in names}
        changes = dict(values)
        for field in exact:
            if (flag := flag_name(field.name)) in rows.column_names:
                name = quote(field.name)
                changes[name] = f"CASE WHEN s.{quote(flag)} THEN t.{name} ELSE s.{name} END"
        deleted = f"s.{quote(DELETED)}"
        mine, its = (f"{alias}.{quote(event)}" for alias in "st")
        is_later = f"{its} IS NULL OR {mine} >= {its}" if event else None
        merger.when_matched_delete(deleted).when_matched_update(changes, is_later)
        read = self.version
        merger.when_not_matched_insert(values, f"NOT {deleted}").execute()
        if self.version == read:  # delta-rs makes no commit if no row changes, as by deletes alone
            self.commit([], transactions, reason)

    def known_keys(self, rows: pa.Table, keys: Sequence[str]) -> set[tuple[object, ...]]:
        """Return the keys of rows that the table has, at the version that was read."""
        listed = ", ".join(map(quote, keys))
        query = QueryBuilder().register("t", self._table).execute(f"SELECT {listed} FROM t")  # noqa: S608
        known = set[tuple[object, ...]]()
        for batch in pa.RecordBatchReader.from_stream(query):
            columns = [batch[key].cast(rows[key].type) for key in keys]
            same = pc.is_in(columns[0], rows[keys[0]].combine_chunks())
            known |= {*zip(*(column.filter(same).to_pylist() for column in columns), strict=True)}
        return known

    def add_columns(self, columns: pa.Schema) -> None:
        """Add columns in one commit."""
        self._table.alter.add_columns(Schema.from_arrow(columns).fields)

    def sync(self) -> None:
        """Make the version that was read survive a power loss, since its writer may have died before that."""
        self.files.sync(
            [_commit_file(self.version)], may_be_gone=True
        )  # a checkpoint may delete it

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
    def maps_columns(self) -> bool:
        """True if columns have other names in files (column mapping)."""
        return self._table.metadata().configuration.get(_MAPPING, "none") != "none"

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

    def refuse_unfit(self, *, replaces: bool) -> None:
        """Check that files may be added, and rows replaced if `replaces` is True.

        :raises SchemaMismatch: names the reason, and a remedy.
        """
        protocol = self._table.protocol()
        named, version = protocol.writer_features, protocol.min_writer_version
        features = _FEATURES_OF_VERSION.get(version, ()) if named is None else named
        properties = self._table.metadata().configuration
        shape = TableShape(self.path, self.types, properties, features, self.partitioned_by)
        refuse_unfit(shape, replaces=replaces)
        if replaces:
            self.refuse_unremovable()

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
        with table_is_there(self.path):
            return DeltaTable(self.path, storage_options=self._options)


def _commit_file(version: int) -> str:
    return f"_delta_log/{version:020}.json"


_CONFLICT = "Failed to commit transaction"
"""The beginning of delta-rs' error for a commit that conflicts with another commit."""


def is_conflict(error: Exception) -> bool:
    """Return True if a commit conflicts with another commit, or with itself after a lost answer."""
    return isinstance(error, CommitFailedError) and str(error).startswith(_CONFLICT)


def classify(error: Exception) -> ErrorClass:
    """Return "retry" for a conflict and for a store that does not answer, "fatal" for any other error."""
    if is_conflict(error):
        return "retry"
    return kind_of_access(error) if isinstance(error, OSError) else "fatal"
