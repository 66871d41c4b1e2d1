"""The row features of Cassandra: what options can ask for of rows, one module each.

Each stage of a row's way asks all of them, in the order of `FEATURES`: the plan (`plan`), the tasks
(`check`), each connection (`session`) and the flush (`write/`). A new one takes a line here, its module, its
options in `row_options`, and its details in `row_plan`. They take longer to import than options.
"""

from __future__ import annotations

from collections.abc import Iterator

from wal_sink.targets.cassandra.feature import Feature
from wal_sink.targets.cassandra.features.deletes import Deletes
from wal_sink.targets.cassandra.features.event_time import EventTime
from wal_sink.targets.cassandra.features.lives import RowLives
from wal_sink.targets.cassandra.features.updates import Lists, Updates
from wal_sink.targets.cassandra.row_plan import CassandraPlan

FEATURES: tuple[Feature, ...] = (
    Updates(),  # before deletes: it refuses a DataFrame without the columns that they look for
    Deletes(),  # before lives: a delete has none
    RowLives(),
    EventTime(),
    Lists(),
)


def used(plan: CassandraPlan) -> Iterator[Feature]:
    """Yield the features by which a plan's rows are written."""
    return (feature for feature in FEATURES if feature.used(plan))
