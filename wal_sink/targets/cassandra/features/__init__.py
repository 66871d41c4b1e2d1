"""The row features of Cassandra: what options can ask for of rows, one module each.

Each stage of a row's way asks all of them, in the order of `FEATURES`: the plan (`plan`), the tasks
(`check`), each connection (`session`) and the flush (`write/`). A new one takes a line here, its module, its
options in `row_options`, and its details in `row_plan`. They take longer to import than options.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from wal_sink.model.plan import WriteDemands
from wal_sink.targets.cassandra.feature import Feature
from wal_sink.targets.cassandra.features.deletes import Deletes
from wal_sink.targets.cassandra.features.event_time import EventTime
from wal_sink.targets.cassandra.features.if_not_exists import IfNotExists
from wal_sink.targets.cassandra.features.lives import RowLives
from wal_sink.targets.cassandra.features.tables import SeveralTables
from wal_sink.targets.cassandra.features.totals import Totals
from wal_sink.targets.cassandra.features.updates import Collections, Lists, Updates
from wal_sink.targets.cassandra.fitness import Server
from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.targets.cassandra.row_plan import CassandraPlan

FEATURES: tuple[Feature, ...] = (
    SeveralTables(),
    Updates(),  # before deletes: it refuses a DataFrame without the columns that they look for
    Deletes(),  # before lives: a delete has none
    RowLives(),
    EventTime(),
    Collections(),
    IfNotExists(),
    Totals(),
    Lists(),
)


def used(plan: CassandraPlan) -> Iterator[Feature]:
    """Yield the features by which a plan's rows are written."""
    return (feature for feature in FEATURES if feature.used(plan))


def demands(plans: Iterable[CassandraPlan]) -> WriteDemands:
    """Return what the rows of plans demand of the flush, all together."""
    asked = [feature.demands for plan in plans for feature in used(plan)]
    names = WriteDemands.__struct_fields__
    return WriteDemands(**{name: any(getattr(each, name) for each in asked) for name in names})


def refuse_server(server: Server, options: CassandraOptions) -> None:
    """Refuse a server that cannot do what the options ask for of rows.

    :raises SchemaMismatch: it cannot.
    """
    for feature in FEATURES:
        feature.refuse_server(server, options)
