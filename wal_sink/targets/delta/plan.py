"""Looks at the table when a query starts, and makes the plan."""

from __future__ import annotations

import msgspec
import pyarrow as pa
from deltalake import DeltaTable

from wal_sink.errors import OptionError, SchemaMismatch, TargetUnavailable, WalSinkError
from wal_sink.model.plan import Plan
from wal_sink.targets.delta import types
from wal_sink.targets.delta.columns import PARTITIONS, agreed_columns
from wal_sink.targets.delta.errors import classify, shortly
from wal_sink.targets.delta.files import Files
from wal_sink.targets.delta.options import DeltaOptions
from wal_sink.targets.delta.table import Table


def agree(options: DeltaOptions, schema: pa.Schema, key: str) -> Plan:
    """Compare a DataFrame with the table.

    :raises SchemaMismatch: there is no table, it cannot be written, or the DataFrame does not fit.
    :raises TargetUnavailable: its store does not answer.
    :raises OptionError: its store refuses.
    """
    path, storage = options.path, options.storage_options
    try:
        if not DeltaTable.is_deltatable(path, storage):
            raise SchemaMismatch(f"There is no Delta table at {path}.", _creation(path, schema))
        table = Table(path, storage, Files(path, storage))
        table.refuse_unfit()
        partitioned_by = table.partitioned_by
        columns = agreed_columns(schema, table.fields, partitioned_by, path)
    except WalSinkError:
        raise
    except Exception as error:
        if classify(error) == "fatal":
            raise OptionError(
                f"The Delta table {path} cannot be read: {type(error).__name__}: {shortly(error)}",
                "Correct delta.path or delta.storageOptions, or the rights upon the table.",
            ) from error
        raise TargetUnavailable(
            f"The store of the Delta table {path} does not answer: {shortly(error)}",
            "See that it can be reached from here.",
        ) from error
    details = {PARTITIONS: msgspec.json.encode(partitioned_by).decode()}
    return Plan(key=key, target="delta", table=path, columns=columns, details=details)


def _creation(path: str, schema: pa.Schema) -> str:
    """Say how to create a table that takes the DataFrame."""
    fields = [types.json_field(field) for field in schema]
    if strange := [f["name"] for f in fields if f["type"] is None]:
        return (
            f"Create it, or correct option delta.path; Delta has no type for {', '.join(strange)}."
        )
    columns = ", ".join(f"`{f['name']}` {types.to_sql(f['type'])}" for f in fields)
    text = msgspec.json.encode({"type": "struct", "fields": fields}).decode()
    return (
        f"Correct option delta.path, or create it by Spark: CREATE TABLE delta.`{path}` ({columns}) USING"
        f" DELTA; or by Python: deltalake.DeltaTable.create({path!r},"
        f" deltalake.Schema.from_json({text!r}))"
    )
