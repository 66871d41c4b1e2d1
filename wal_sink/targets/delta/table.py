"""A Delta table at one version: its schema and log, and whether it can be written exactly once.

A commit is about exactly the version that was read. The undocumented names of deltalake that are used here
each have a reason, and a canary in `tests/delta/test_commits.py`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote as percent_encoded
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Field, QueryBuilder, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from wal_sink.errors import SchemaMismatch
from wal_sink.targets.base import ErrorClass
from wal_sink.targets.delta.columns import DECLARED, declared, is_absolute, to_arrow, to_sql
from wal_sink.targets.delta.files import Files, table_is_there
from wal_sink.targets.names import quote
from wal_sink.targets.staged_files import kind_of_access, renamed
from wal_sink.targets.unavailable import flag_name

_KNOWN_FEATURES = {
    *("appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", "deletionVectors"),
    *("generatedColumns", "invariants", "timestampNtz", "v2Checkpoint"),
    *("variantType", "variantType-preview"),
}
"""Features with which delta-rs commits. They require nothing of a writer that appends files, or columns and
properties show what. `test_a_feature_is_known_if_a_commit_succeeds` makes a commit with each."""

_FEATURES_OF_VERSION: dict[int, Collection[str]] = {6: ("identityColumns",)}
"""Further features that a version of the protocol requires of writers; newer versions name their features."""

_DROPPED = ("rowTracking", "inCommitTimestamp", "materializePartitionColumns", "domainMetadata")
"""Features that Spark drops, those first that need others. It drops no clustering and no defaults of columns;
after those that readers have to know, as typeWidening, the table asks for checkpointProtection."""

_MAPPING = "delta.columnMapping.mode"
_TRANSACTION_RETENTION = "delta.setTransactionRetentionDuration"

_UNWRITABLE_COLUMNS = {
    "delta.generationExpression": "is generated",
    "delta.identity.start": "is an identity",
    "delta.invariants": "has an invariant",
}


def refuse_unfit(
    path: str,
    fields: Sequence[Mapping[str, Any]],
    properties: Mapping[str, str],
    features: Collection[str],
    partitioned_by: Collection[str] = (),
    *,
    replaces: bool = False,
) -> None:
    """Check that files may be added by a writer that knows columns and partitions only.

    :param fields: as Delta's log has them.
    :param features: what the table asks of its writers.
    :param partitioned_by: the partition columns.
    :param replaces: whether rows are replaced, too.
    :raises SchemaMismatch: names what is in the way.
    """
    for what, remedy in _obstacles(path, fields, properties, features, partitioned_by):
        raise SchemaMismatch(f"The Delta table {path} cannot be written: {what}.", remedy)
    if replaces and properties.get(_APPEND_ONLY, "false").lower() == "true":
        raise SchemaMismatch(
            f"The Delta table {path} takes no rows by key: it is append-only ({_APPEND_ONLY}).",
            f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('{_APPEND_ONLY}' = 'false'); or set delta.mode to"
            " append.",
        )
    for field in fields if replaces else ():
        if to_arrow(field["type"]) is None:
            raise SchemaMismatch(
                f"The Delta table {path} takes no rows by key: a row is written whole, and wal_sink does not"
                f" write {field['name']}, {to_sql(field['type'])}.",
                "Drop that column, or set delta.mode to append.",
            )
    in_files = [field for field in fields if field["name"] not in partitioned_by]
    bounded = _columns_with_bounds(in_files, properties) if replaces else []
    if inexact := [field for field in bounded if has_inexact_bounds(field["type"])]:
        raise SchemaMismatch(
            f"The Delta table {path} takes no rows by key: delta-rs, which writes them, rounds the bounds of"
            f" {inexact[0]['name']}, a decimal of more than {_EXACT_DIGITS} digits, and readers that filter"
            " by it would miss rows.",
            f"Let it write bounds of the key alone: ALTER TABLE delta.`{path}` SET TBLPROPERTIES"
            f" ('{_BOUNDED}' = '…'),"
            f" with the columns of the key; or of no column: ('{_MOST_BOUNDED}' = '0').",
        )


_APPEND_ONLY = "delta.appendOnly"
_BOUNDED, _MOST_BOUNDED = "delta.dataSkippingStatsColumns", "delta.dataSkippingNumIndexedCols"
_EXACT_DIGITS = 15
"""Of a double, which delta-rs (1.6.6) makes of a decimal that is a bound."""
_CAN_BE_BOUNDED = (
    *("string", "long", "integer", "short", "byte", "date", "timestamp", "timestamp_ntz"),
)
"""Types of columns whose bounds are asked for; Spark takes no others, but numbers."""


def has_inexact_bounds(type_: Any) -> bool:
    """Return True if delta-rs rounds the bounds of a type, as Delta's log has it."""
    if not isinstance(type_, str):  # of arrays and maps it writes none
        return any(has_inexact_bounds(field["type"]) for field in type_.get("fields", ()))
    match = re.match(r"decimal\((\d+),", type_)
    return match is not None and int(match[1]) > _EXACT_DIGITS


def _columns_with_bounds(
    fields: Sequence[Mapping[str, Any]], properties: Mapping[str, str]
) -> list[Mapping[str, Any]]:
    """Return the columns of whose values delta-rs may write bounds.

    :param fields: without the partition columns.
    """
    if (listed := properties.get(_BOUNDED)) is not None:
        names = {name.strip().strip("`").partition(".")[0] for name in listed.split(",")}
        return [field for field in fields if field["name"] in names]
    most = properties.get(_MOST_BOUNDED, "32")
    return [*fields[: int(most)]] if most.isdecimal() else [*fields]


def bounds_of_key(
    fields: Sequence[Mapping[str, Any]], keys: Sequence[str], partition: Sequence[str]
) -> dict[str, str]:
    """Return the properties of a new table by which delta-rs writes bounds of the key alone.

    By those a merge skips files. Others may be false: of a long decimal, or where a float is not finite.
    """
    names = [
        field["name"]
        for field in fields
        if field["name"] in keys
        and field["name"] not in partition
        and field["type"] in _CAN_BE_BOUNDED
        and re.fullmatch(r"\w+", field["name"])
    ]
    return {_BOUNDED: ",".join(names)} if names else {_MOST_BOUNDED: "0"}


def _obstacles(
    path: str,
    fields: Sequence[Mapping[str, Any]],
    properties: Mapping[str, str],
    features: Collection[str],
    partitioned_by: Collection[str],
) -> Iterator[tuple[str, str]]:
    copy = f"Write to a copy: {to_copy(path, partitioned_by)} and set delta.path to {path}-copy."
    for name, rule in properties.items():
        if name.startswith("delta.constraints."):
            short = name.removeprefix("delta.constraints.")
            yield (
                f"it has the constraint {short}, which files that are added are not checked for",
                f"ALTER TABLE delta.`{path}` DROP CONSTRAINT {short}; and filter by .where('{rule}').",
            )
    if _TRANSACTION_RETENTION in properties:
        yield (
            f"{_TRANSACTION_RETENTION} drops its old transactions, and with them the ledger",
            f"ALTER TABLE delta.`{path}` UNSET TBLPROPERTIES ('{_TRANSACTION_RETENTION}');",
        )
    for field in fields:
        if DECLARED in field["metadata"] and not isinstance(field["type"], str):
            inner = field["metadata"][DECLARED]
            yield (
                f"its column {field['name']} is {inner}, and lengths inside of values are not checked",
                "Write to a table that has string there.",
            )
        for key, what in _UNWRITABLE_COLUMNS.items():
            if key in field["metadata"]:
                yield f"its column {field['name']} {what}", copy
    if unknown := sorted(set(features) - _KNOWN_FEATURES):
        drop = " ".join(
            f"ALTER TABLE delta.`{path}` DROP FEATURE {feature};"
            for feature in _DROPPED
            if feature in unknown
        )
        restore = (
            " If it got that after its last rows, go back by Spark to the version before, n of DESCRIBE"
            f" HISTORY: SET spark.databricks.delta.restore.protocolDowngradeAllowed = true; RESTORE TABLE"
            f" delta.`{path}` TO VERSION AS OF n;"
        )
        yield (
            f"it asks of its writers what wal_sink, or delta-rs, does not know: {', '.join(unknown)}",
            drop if {*unknown} <= {*_DROPPED} else f"{copy}{restore}",
        )


def to_copy(path: str, partitioned_by: Collection[str]) -> str:
    """Return Spark's statement that makes a table of the same rows, and asks nothing of its writers."""
    names = ", ".join(f"`{name}`" for name in partitioned_by)
    parts = f" PARTITIONED BY ({names})" if names else ""
    rows = f"SELECT * FROM delta.`{path}`"  # noqa: S608 -- is shown
    return f"CREATE TABLE delta.`{path}-copy` USING delta{parts} AS {rows};"


_NOT_ENCODED = "!$&'()+,-.:;=@_~/"
"""What delta-rs (1.6.6) leaves as it is in the path of a file that it removes, beside letters and digits."""

_USUAL_PATH = r"^[A-Za-z0-9_=.-][A-Za-z0-9_=./-]*$"
"""A path that is removed as it is, as most are; others are compared one by one."""


def why_not_removable(path: str) -> str:
    """Return why delta-rs cannot remove a file; empty if it can.

    delta-spark writes letters above 0x7F into the log as they are. delta-rs removes such a file by another
    spelling of its path, which is the path of no file: the file stays, and its rows are in the table twice.

    :param path: of the file, as the table's log has it.
    """
    if is_absolute(path):
        return "its path is absolute, as in a shallow clone"
    removed = percent_encoded(unquote(path), safe=_NOT_ENCODED)
    return (
        ""
        if removed == path
        else f"the table's log would name {removed}, which is none of its files"
    )


RANDOM_PREFIXES = "delta.randomizeFilePrefixes"
"""The property by which delta-spark names no folder after the values of a partition."""

_SYNCED_AT_ONCE = 20

MERGED, DELETED = "wal_sink:merged", "wal_sink:deleted"
"""Columns of rows for `Table.merge`: whether a row replaces the one of its key, and whether it deletes it."""


class Table:
    """The table at a path. delta-rs keeps what it has read; `refresh` reads what was committed since.

    :raises SchemaMismatch: there is no table.
    """

    def __init__(self, path: str, options: dict[str, str] | None, files: Files) -> None:
        self.path = path
        self._options = options
        self.files = files
        self._table = self._opened()
        self._synced: int | None = None

    def refresh(self) -> None:
        """Look at the newest version.

        :raises SchemaMismatch: there is no table any more.
        """
        self._table.update_incremental()
        # A table that was deleted and made again has a log of its own, on which an old one must not go on.
        if self.files.missing([_commit_file(self.version)]):
            self._table, self._synced = self._opened(), None

    def transaction_version(self, app_id: str) -> int | None:
        """Return the newest version of a writer's transactions; None for none."""
        return self._table.transaction_version(app_id)

    def has_noted(self, app_id: str, version: int, since: int) -> bool | None:
        """Return True if a later commit has a transaction; None: the table's log was cleaned up meanwhile.

        :param since: a version of the table; commits after it are looked at.
        """
        for number in range(since + 1, self.version + 1):
            try:
                lines = self.files.read(_commit_file(number)).splitlines()
            except FileNotFoundError:
                return None
            noted = [json.loads(line).get("txn") for line in lines if b'"txn"' in line]
            if any(txn and (txn["appId"], txn["version"]) == (app_id, version) for txn in noted):
                return True
        return False

    def commit(self, files: Sequence[AddAction], transactions: dict[str, int], reason: str) -> None:
        """Add files in one commit, unless a commit since `refresh` has any of the transactions.

        delta-rs compares the commits between the two; those of other writers it ignores.

        :param reason: what the table's history says of the commit.
        :raises CommitFailedError: for `is_conflict`, or delta-rs does not write such a table.
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
        """Replace or delete the rows of keys, and add those of other keys, in one commit, as `commit` does.

        Commits of others that change the partitions that this one reads are conflicts.

        :param rows: all columns of the table, `MERGED` (at most one row of a key), `DELETED`, and flags of
            unavailable cells, which keep their values.
        :param event: the column that says when a row changed: a later row of the table stays.
        :raises SchemaMismatch: another writer has added a file that delta-rs cannot remove.
        :raises CommitFailedError: for `is_conflict`, or delta-rs does not write such a table.
        """
        self._refuse_unremovable()  # of the very version on which the commit is made
        exact = [(field["name"], to_arrow(field["type"], required=True)) for field in self.fields]
        schema = pa.schema([*exact, *[*rows.schema][len(exact) :]])
        rows = renamed(rows.to_batches(), schema)
        names = [quote(field["name"]) for field in self.fields]
        same = " AND ".join(f"t.{quote(key)} = s.{quote(key)}" for key in keys)
        merger = self._table.merge(
            rows,
            f"s.{quote(MERGED)} AND {same}",
            source_alias="s",
            target_alias="t",
            streamed_exec=False,  # by the bounds of the rows it skips files
            commit_properties=CommitProperties(
                custom_metadata={"userMetadata": f"wal_sink: {reason}"},
                app_transactions=[Transaction(app, v) for app, v in transactions.items()],
            ),
        )
        values = {name: f"s.{name}" for name in names}
        changes = dict(values)
        for field in self.fields:
            if (flag := flag_name(field["name"])) in rows.column_names:
                name = quote(field["name"])
                changes[name] = f"CASE WHEN s.{quote(flag)} THEN t.{name} ELSE s.{name} END"
        deleted = f"s.{quote(DELETED)}"
        mine, its = (f"{alias}.{quote(event)}" for alias in "st")
        is_later = f"{its} IS NULL OR {mine} >= {its}" if event else None
        merger.when_matched_delete(deleted).when_matched_update(changes, is_later)
        read = self.version
        merger.when_not_matched_insert(values, f"NOT {deleted}").execute()
        if self.version == read:  # of deletes that meet no row delta-rs makes no commit
            self.commit([], transactions, reason)

    def known_keys(self, rows: pa.Table, keys: Sequence[str]) -> set[tuple[object, ...]]:
        """Return the keys of rows that the table has, in the version that was read."""
        listed = ", ".join(map(quote, keys))
        query = QueryBuilder().register("t", self._table).execute(f"SELECT {listed} FROM t")  # noqa: S608
        known = set[tuple[object, ...]]()
        for batch in pa.RecordBatchReader.from_stream(query):
            columns = [batch[key].cast(rows[key].type) for key in keys]
            same = pc.is_in(columns[0], rows[keys[0]].combine_chunks())
            known |= {*zip(*(column.filter(same).to_pylist() for column in columns), strict=True)}
        return known

    def add_columns(self, fields: Sequence[Mapping[str, Any]]) -> None:
        """Add columns, as the log has them, in one commit."""
        self._table.alter.add_columns([Field.from_json(json.dumps(field)) for field in fields])

    def sync(self) -> None:
        """Make the version that was looked at survive a power loss, and those before it."""
        newest = self.version
        if newest != self._synced:
            first = max(0, newest - _SYNCED_AT_ONCE, (self._synced or -1) + 1)
            commits = map(_commit_file, range(first, newest + 1))
            self.files.sync(commits, may_be_gone=True)  # old ones, after a checkpoint
            self._synced = newest

    @property
    def version(self) -> int:
        """The version of the table that was looked at."""
        return self._table.version()

    @property
    def id(self) -> str:
        """Of the table; CREATE OR REPLACE gives it another one."""
        return str(self._table.metadata().id)

    @property
    def fields(self) -> list[dict[str, Any]]:
        """The columns, as the log has them, and texts with the length that they are declared with."""
        fields: list[dict[str, Any]] = json.loads(self._table.schema().to_json())["fields"]
        return [declared(field) for field in fields]

    @property
    def arrow_schema(self) -> pa.Schema:
        """The columns, by the types of their values."""
        return pa.schema([(field["name"], to_arrow(field["type"])) for field in self.fields])

    @property
    def maps_columns(self) -> bool:
        """Return True if columns have other names in files, which Spark gives them."""
        return self._table.metadata().configuration.get(_MAPPING, "none") != "none"

    @property
    def partitioned_by(self) -> list[str]:
        """The partition columns, in their order."""
        return list(self._table.metadata().partition_columns)

    @property
    def fingerprint(self) -> str:
        """A digest of all that shapes the files of the table."""
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
        """Check that files may be added; and that rows may be replaced, if that is asked.

        :raises SchemaMismatch: names what is in the way.
        """
        protocol = self._table.protocol()
        named, of_version = (
            protocol.writer_features,
            _FEATURES_OF_VERSION.get(protocol.min_writer_version, ()),
        )
        refuse_unfit(
            self.path,
            self.fields,
            self._table.metadata().configuration,
            of_version if named is None else named,
            self.partitioned_by,
            replaces=replaces,
        )
        if replaces:
            self._refuse_unremovable()

    def _refuse_unremovable(self) -> None:
        """Check that delta-rs can remove each file of the version that was read.

        :raises SchemaMismatch: names a file that it cannot remove.
        """
        paths = pa.table(self._table.get_add_actions())["path"]  # as the log has them
        unusual = paths.filter(pc.invert(pc.match_substring_regex(paths, _USUAL_PATH)))
        for path in unusual.to_pylist():
            if problem := why_not_removable(path):
                place = f"delta.`{self.path}`"
                rewrite = f"INSERT OVERWRITE {place} SELECT * FROM {place}"  # noqa: S608 -- is shown
                raise SchemaMismatch(
                    f"The Delta table {self.path} takes no rows by key: delta-rs, which writes them, cannot"
                    f" remove the file {path}: {problem}.",
                    "Let Spark write the files again, by names that delta-rs can remove:"
                    f"\nALTER TABLE {place} SET TBLPROPERTIES ('{RANDOM_PREFIXES}' = 'true');"
                    f"\n{rewrite};",
                )

    def _opened(self) -> DeltaTable:
        with table_is_there(self.path):
            return DeltaTable(self.path, storage_options=self._options)


def _commit_file(version: int) -> str:
    return f"_delta_log/{version:020}.json"


_CONFLICT = "Failed to commit transaction"
"""So delta-rs begins the error of a commit in conflict with others; its other errors do not pass."""


def is_conflict(error: Exception) -> bool:
    """Return True if a commit is in conflict with another, or with itself, repeated after a lost answer."""
    return isinstance(error, CommitFailedError) and str(error).startswith(_CONFLICT)


def classify(error: Exception) -> ErrorClass:
    """Retry where a store does not answer, and where a commit is in conflict with another."""
    if is_conflict(error):
        return "retry"
    return kind_of_access(error) if isinstance(error, OSError) else "fatal"
