"""The row features of Cassandra: what options can ask for of rows, one module each.

Each stage of a row's way asks all of them, in the order of `FEATURES`: the plan (`plan`), the tasks
(`check`) and the flush (`write/`). A new one takes this line, its module, its options in `row_options`, and
its details in `row_plan`. They take longer to import than options, so only these stages import them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from wal_sink.targets.cassandra.feature import Feature
from wal_sink.targets.cassandra.features.collections import Collections, Lists
from wal_sink.targets.cassandra.features.deletes import Deletes
from wal_sink.targets.cassandra.features.event_time import EventTime
from wal_sink.targets.cassandra.features.if_not_exists import IfNotExists
from wal_sink.targets.cassandra.features.lives import RowLives
from wal_sink.targets.cassandra.features.tables import SeveralTables
from wal_sink.targets.cassandra.features.totals import Totals
from wal_sink.targets.cassandra.features.write_mode import Updates
from wal_sink.targets.cassandra.row_plan import CassandraPlan
from wal_sink.targets.cassandra.schema.compare import Wanted
from wal_sink.targets.cassandra.schema.table import ColumnMetadata
from wal_sink.targets.cassandra.types import CqlType

FEATURES: tuple[Feature, ...] = (
    SeveralTables(),
    Deletes(),  # before lives: a delete has none
    RowLives(),
    EventTime(),
    Collections(),
    Updates(),
    IfNotExists(),
    Totals(),
    Lists(),
)


def about_column(
    field: pa.Field, column: ColumnMetadata, tree: CqlType, wanted: Wanted
) -> list[str]:
    """Return why a column of the table cannot be written as it is wanted, a line each."""
    lines = (each.about_column(field, column, tree, wanted) for each in FEATURES)
    return [line for line in lines if line]


def used(plan: CassandraPlan) -> Iterator[Feature]:
    """Yield the features by which a plan's rows are written."""
    return (feature for feature in FEATURES if feature.used(plan))
