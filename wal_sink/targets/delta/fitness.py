"""Which Delta tables can be written exactly once, and with correct files. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from wal_sink.errors import SchemaMismatch

_KNOWN_FEATURES = {
    *("allowColumnDefaults", "appendOnly", "changeDataFeed", "checkConstraints", "clustering"),
    *("columnMapping", "deletionVectors", "domainMetadata", "generatedColumns", "identityColumns"),
    *("invariants", "timestampNtz", "typeWidening", "v2Checkpoint", "vacuumProtocolCheck"),
    *("variantType", "variantType-preview"),
}
"""That ask nothing of a writer that appends files, or what they ask shows in columns and properties."""

_FORGETS = "delta.setTransactionRetentionDuration"

_OF_COLUMNS = {
    "delta.generationExpression": "is generated",
    "delta.identity.start": "is an identity",
    "delta.invariants": "has an invariant",
}


def refuse_unfit(
    path: str,
    fields: Sequence[Mapping[str, Any]],
    properties: Mapping[str, str],
    features: Collection[str],
) -> None:
    """See that files may be added by a writer that knows columns and partitions only.

    :param fields: as Delta's log has them.
    :param features: what the table asks of its writers.
    :raises SchemaMismatch: names what is in the way.
    """
    for what, remedy in _obstacles(fields, properties, features):
        raise SchemaMismatch(f"The Delta table {path} cannot be written: {what}.", remedy)


def _obstacles(
    fields: Sequence[Mapping[str, Any]], properties: Mapping[str, str], features: Collection[str]
) -> Iterator[tuple[str, str]]:
    another = "Write to a table without it; a query of your own can go on from there."
    if properties.get("delta.columnMapping.mode", "none") != "none":
        yield "its columns have other names in its files (delta.columnMapping.mode)", another
    for name, rule in properties.items():
        if name.startswith("delta.constraints."):
            short = name.removeprefix("delta.constraints.")
            yield (
                f"it has the constraint {short}, which files that are added are not checked for",
                f"ALTER TABLE … DROP CONSTRAINT {short}, and filter in the DataFrame: .where('{rule}').",
            )
    if _FORGETS in properties:
        yield (
            f"it forgets by {_FORGETS} which transactions were committed, and with them the ledger",
            f"ALTER TABLE … UNSET TBLPROPERTIES ('{_FORGETS}').",
        )
    for field in fields:
        for key, what in _OF_COLUMNS.items():
            if key in field["metadata"]:
                yield f"its column {field['name']} {what}", another
    if unknown := sorted(set(features) - _KNOWN_FEATURES):
        yield f"it asks of its writers what wal_sink does not know: {', '.join(unknown)}", another
