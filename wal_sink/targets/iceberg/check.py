"""Casts and refuses rows in the tasks of the query. The check needs only the plan, no pyiceberg."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.model.plan import Column, Plan
from wal_sink.targets.arrow_columns import stored_as_planned
from wal_sink.targets.casts import cast, refuse_as_folder, refuse_years

FOLDERS, WIDTHS = "folders", "widths"
"""Keys of `Plan.details`, each with a value by column. If a column's texts name the folders of a partition,
`FOLDERS` has the partition's name. If the partition truncates these texts, `WIDTHS` has their length."""


def check(batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
    """Cast a batch to the table's types. The order of its columns is kept.

    :raises InvalidRow: a value does not fit its column, or cannot name the folder of a partition.
    """
    cast_to_plan = stored_as_planned(plan)
    folders, widths = plan.details[FOLDERS], plan.details[WIDTHS]

    def stored(column: Column, values: pa.Array) -> pa.Array:
        array = cast_to_plan(column, values)
        refuse_years(array, f"does not fit into {column.type}")
        if column.name in folders:
            width = widths.get(column.name)
            named = array if width is None else pc.utf8_slice_codeunits(array, 0, width)
            refuse_as_folder(named, folders[column.name])
        return array

    return cast(batch, plan, stored)
