"""The options that say what becomes of rows; the `cell_store` of tests has them, too."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from wal_sink.errors import OptionError
from wal_sink.options import Options, fields
from wal_sink.targets.cassandra.times.given import (
    EVENT_COLUMN,
    EXPIRES_COLUMN,
    TTL,
    TTL_COLUMN,
    EventColumn,
    ExpiresColumn,
    RowTimes,
    Ttl,
    TtlColumn,
)
from wal_sink.targets.cassandra.totals.given import AFTER as ADD_COLUMNS_AFTER
from wal_sink.targets.cassandra.totals.given import OPTION as ADD_COLUMNS
from wal_sink.targets.cassandra.totals.given import (
    AddColumns,
    AddColumnsAfter,
    names,
    refuse_contradictions,
)
from wal_sink.targets.cassandra.types import absent
from wal_sink.targets.cassandra.types.collection_mode import OPTION as COLLECTIONS
from wal_sink.targets.cassandra.types.collection_mode import (
    Change,
    CollectionModes,
    modes_shape,
    read_modes,
)
from wal_sink.targets.cassandra.types.write_mode import OPTION as WRITE_MODE
from wal_sink.targets.cassandra.types.write_mode import WriteMode
from wal_sink.targets.operations import Operation, OperationColumn, Operations, read_words
from wal_sink.targets.tables import TableColumn, Tables


class RowOptions(Options, frozen=True, kw_only=True):
    """To which tables a row goes, by which statement, with which times, and which rows are deletes.

    :raises OptionError: when constructed with values that contradict each other.
    """

    tables: Tables = ""
    table_column: TableColumn = msgspec.field(name="tableColumn", default="")
    write_mode: WriteMode = msgspec.field(name=WRITE_MODE, default="insert")
    collections: CollectionModes = msgspec.field(name=COLLECTIONS, default_factory=dict)
    if_not_exists: absent.IfNotExists = msgspec.field(name=absent.OPTION, default=False)
    add_columns: AddColumns = msgspec.field(name=ADD_COLUMNS, default="")
    add_columns_after: AddColumnsAfter = msgspec.field(name=ADD_COLUMNS_AFTER, default="")
    ttl: Ttl = msgspec.field(name=TTL, default=None)
    ttl_column: TtlColumn = msgspec.field(name=TTL_COLUMN, default="")
    expires_column: ExpiresColumn = msgspec.field(name=EXPIRES_COLUMN, default="")
    event_column: EventColumn = msgspec.field(name=EVENT_COLUMN, default="")
    operation_column: OperationColumn = msgspec.field(name="operationColumn", default="")
    operations: Operations = msgspec.field(name="operations", default="")

    def __post_init__(self) -> None:
        read_words(self.operation_column, self.operations)
        self.times.refuse_contradictions(self.operation_column)
        changed = list(modes_shape(self.changes))
        if changed and self.event_column:
            raise OptionError(
                f"Options {changed[0]} and {EVENT_COLUMN} are given together: of two rows of one key and one"
                " event time the later one is written, and elements of the other would be lost.",
                f"Leave out {EVENT_COLUMN}: rows then have their places in the stream for their times; or"
                f" set {changed[0]} to overwrite.",
            )
        given = {field.encode_name: getattr(self, field.name) for field in fields(type(self))}
        given[COLLECTIONS] = ", ".join(self.changes)
        refuse_contradictions(self.add_columns, given)
        absent.refuse_contradictions(self.if_not_exists, given)

    @property
    def times(self) -> RowTimes:
        """What is said of the times of rows."""
        return RowTimes(
            ttl_s=self.ttl,
            ttl_column=self.ttl_column,
            expires_column=self.expires_column,
            event_column=self.event_column,
        )

    @property
    def changes(self) -> Mapping[str, Change]:
        """What is done to collections that are not written whole, by column in lower case."""
        return read_modes(self.collections)

    @property
    def after(self) -> tuple[str, ...]:
        """The queries that have added to totals before, and never will again."""
        return names(self.add_columns_after)

    @property
    def words(self) -> Mapping[str, Operation]:
        """What each word of the operation column means."""
        return read_words(self.operation_column, self.operations)
