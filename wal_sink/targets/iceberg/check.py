"""Casts and refuses rows, in the tasks of the query, from the plan alone. Imports no pyiceberg."""

from __future__ import annotations

import base64

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.model.plan import Column, Plan
from wal_sink.targets.arrow_values import text
from wal_sink.targets.casts import cast, refuse, refuse_as_folder, stored_by

ARROW, FOLDERS, WIDTHS, LEAST = "arrow", "folders", "widths", "least"
"""Details of a plan: the columns as Arrow types, serialized in Base64; then by column the partition that a
text names a folder of, to how many characters that truncates it, and the least number that a partition
truncates to one of its type."""


def planned_types(plan: Plan) -> pa.Schema:
    """Return the columns of a plan by the types of the table."""
    return pa.ipc.read_schema(pa.BufferReader(base64.b64decode(plan.details[ARROW])))


def check(batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
    """Cast a batch to the table's types; it keeps the order of its columns.

    :raises InvalidRow: a value does not fit its column, or cannot name the folder of a partition.
    """
    types = planned_types(plan)
    by_type = {column.type: types.field(column.name).type for column in plan.columns}
    held = stored_by(by_type.get)
    folders, widths, least = (plan.details[detail] for detail in (FOLDERS, WIDTHS, LEAST))

    def stored(column: Column, values: pa.Array) -> pa.Array:
        array = held(column, values)
        if column.name in least:
            first = least[column.name]
            refuse(
                pc.less(array, text(first).cast(array.type)),
                f"is below {first}, whose partition is not in its type",
                "Filter such rows out, or partition the table by bucket.",
            )
        if column.name in folders:
            width = widths.get(column.name)
            named = array if width is None else pc.utf8_slice_codeunits(array, 0, width)
            refuse_as_folder(named, folders[column.name])
        return array

    return cast(batch, plan, stored)
