"""The reasons why a Delta table cannot be written exactly once, and their remedies."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.types as pt

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import fields
from wal_sink.targets.ddl import Layout
from wal_sink.targets.delta.table import Table

_APPEND_ONLY = "delta.appendOnly"
_TRANSACTION_RETENTION = "delta.setTransactionRetentionDuration"
_BOUNDED, _MOST_BOUNDED = "delta.dataSkippingStatsColumns", "delta.dataSkippingNumIndexedCols"

_KNOWN_FEATURES = {
    *("appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", "deletionVectors"),
    *("generatedColumns", "invariants", "timestampNtz", "v2Checkpoint"),
    *("variantType", "variantType-preview"),
}
"""Features with which delta-rs commits. Such a feature requires nothing of a writer that appends files, or a
column or property of the table shows what it requires. `test_feature_is_known_if_a_commit_succeeds` makes a
commit with each."""

_DROPPED = ("rowTracking", "inCommitTimestamp", "materializePartitionColumns", "domainMetadata")
"""Features that Spark can drop, in the order in which it drops them. It drops neither clustering nor column
defaults. After the drop of a feature that readers must know, such as typeWidening, the table requires
checkpointProtection."""

_EXACT_DIGITS = 15
"""The digits of a double. delta-rs (1.6.6) writes the bounds of a decimal as doubles."""

_UNWRITABLE_COLUMNS = {
    b"delta.generationExpression": "is generated",
    b"delta.identity.start": "is an identity",
    b"delta.invariants": "has an invariant",
}


def refuse_unfit(table: Table, *, replaces: bool) -> None:
    """Check that a writer which knows columns and partitions only may add files.

    :param replaces: True if rows are replaced, too.
    :raises SchemaMismatch: names the reason, and a remedy.
    """
    for what, remedy in _obstacles(table):
        raise SchemaMismatch(f"The Delta table {table.path} cannot be written: {what}.", remedy)
    if not replaces:
        return
    for what, remedy in _about_upserts(table):
        raise SchemaMismatch(f"The Delta table {table.path} takes no rows by key: {what}.", remedy)
    table.refuse_unremovable()


def _about_upserts(table: Table) -> Iterator[tuple[str, str]]:
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
    """Return True if delta-rs rounds the bounds of a type. Arrays and maps have no bounds."""
    if pt.is_struct(type_):
        return any(_has_inexact_bounds(field.type) for field in fields(type_))
    return bool(pt.is_decimal(type_) and type_.precision > _EXACT_DIGITS)


def _columns_with_bounds(table: Table) -> list[pa.Field]:
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
    # Spark allows no boolean and no binary in this list.
    unbounded = (pt.is_boolean, pt.is_binary, pt.is_decimal)
    names = [
        name
        for name in types.names
        if name in layout.key
        and name not in layout.partition
        and not any(is_kind(types.field(name).type) for is_kind in unbounded)
        and re.fullmatch(r"\w+", name)
    ]
    return {_BOUNDED: ",".join(names)} if names else {_MOST_BOUNDED: "0"}


def _obstacles(table: Table) -> Iterator[tuple[str, str]]:
    path = table.path
    copy = f"Write to a copy: {_to_copy(table)} and set delta.path to {path}-copy."
    for name, rule in table.properties.items():
        if name.startswith("delta.constraints."):
            short = name.removeprefix("delta.constraints.")
            yield (
                f"it has the constraint {short}, which is not checked for files that wal_sink adds",
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


def _to_copy(table: Table) -> str:
    """Return Spark's statement that copies the rows to a table without requirements."""
    path, names = table.path, ", ".join(f"`{name}`" for name in table.partitioned_by)
    parts = f" PARTITIONED BY ({names})" if names else ""
    rows = f"SELECT * FROM delta.`{path}`"  # noqa: S608 -- only shown
    return f"CREATE TABLE delta.`{path}-copy` USING delta{parts} AS {rows};"
