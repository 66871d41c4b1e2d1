"""What cannot be said of rows with lists that are not frozen (rule 26). Pure."""

from __future__ import annotations

from wal_sink.errors import SchemaMismatch
from wal_sink.targets.cassandra.schema.table_metadata import TableMetadata
from wal_sink.targets.cassandra.times.given import EVENT_COLUMN, EXPIRES_COLUMN, RowTimes

_FROZEN = "Make the columns frozen<list<…>>, leave them out of the DataFrame"


def refuse_beside_lists(times: RowTimes, live: TableMetadata) -> None:
    """Refuse what hangs on a row's timestamp, which each attempt at its list raises.

    :param times: what the options say of the rows' times.
    :raises SchemaMismatch: rows bring their timestamps along, or live for a number of seconds.
    """
    if times.event_column:
        raise SchemaMismatch(
            f"{live.name} has lists that are not frozen, and {EVENT_COLUMN} is given: a row that is written"
            " twice at the time of its event would have their elements twice.",
            f"{_FROZEN}, or leave out the option.",
        )
    seconds = ", ".join(
        (*(name for name in times.shape if name != EXPIRES_COLUMN),)
        + ((f"default_time_to_live = {live.default_ttl}",) if live.default_ttl else ())
    )
    if seconds:
        raise SchemaMismatch(
            f"{live.name} has lists that are not frozen, and its rows live for a number of seconds"
            f" ({seconds}): they count from a row's timestamp, which each attempt at its lists raises.",
            f"{_FROZEN}; or say when rows expire by {EXPIRES_COLUMN} alone, and ALTER TABLE {live.name} WITH"
            " default_time_to_live = 0.",
        )
