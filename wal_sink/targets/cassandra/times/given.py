"""What is said of the rows' times: by the options, and in the plan. Pure.

A **life** is given as seconds, or as the time at which it ends. An **event time** is the write timestamp of
its row. `read` checks the values in the tasks, `lives` turns lives into what is sent.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated

import msgspec
import pyarrow as pa
from msgspec import Meta

from wal_sink.errors import OptionError, SchemaMismatch
from wal_sink.model.plan import Column, Plan
from wal_sink.model.spark_types import canonical, spark_type
from wal_sink.targets.unwritten import named_column, refuse_written

TTL = "cassandra.ttl"
TTL_COLUMN = "cassandra.ttlColumn"
EXPIRES_COLUMN = "cassandra.expiresAtColumn"
EVENT_COLUMN = "cassandra.timestampColumn"

MOST_TTL_S = 20 * 365 * 86_400
"""The longest life that Cassandra takes, in seconds."""

Ttl = Annotated[
    Annotated[int, Meta(ge=1, le=MOST_TTL_S)] | None,
    Meta(
        description=f"seconds that every row lives from when it was published, 1 to {MOST_TTL_S};"
        " default: for ever, or what the table says"
    ),
]
TtlColumn = Annotated[
    str, Meta(description="column of seconds that each row lives; it is not written")
]
ExpiresColumn = Annotated[str, Meta(description="timestamp column: until when each row lives")]
EventColumn = Annotated[
    str,
    Meta(
        description="timestamp column, or bigint of microseconds since 1970: of two versions of a row the"
        " later one stays"
    ),
]

_WHOLE = ("tinyint", "smallint", "int", "bigint")
_TAKES = {
    TTL_COLUMN: _WHOLE,
    EXPIRES_COLUMN: ("timestamp",),
    EVENT_COLUMN: ("timestamp", "bigint"),
}
"""The Spark types that the column of an option may have."""
_REMEDIES = {
    TTL_COLUMN: 'Make it whole seconds: .cast("bigint").',
    EXPIRES_COLUMN: 'Make it an instant: .cast("timestamp").',
    EVENT_COLUMN: 'Make it an instant, .cast("timestamp"), or a bigint of microseconds since 1970.',
}
_DETAIL = "times"
"""Under which name a plan's details have them, as a JSON object."""


class RowTimes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the options say of the rows' times, and what the server takes."""

    ttl_s: int | None = None
    """The life of every row, seconds."""
    ttl_column: str = ""
    expires_column: str = ""
    event_column: str = ""
    latest_s: int = 0
    """The last second at which a life may end, since 1970; 0: it is not known."""
    most_ttl_s: int = MOST_TTL_S
    """The longest life that the server took when the plan was made, seconds."""

    @property
    def columns(self) -> dict[str, str]:
        """The columns that are named, by the options that name them."""
        named = {
            TTL_COLUMN: self.ttl_column,
            EXPIRES_COLUMN: self.expires_column,
            EVENT_COLUMN: self.event_column,
        }
        return {option: column for option, column in named.items() if column}

    @property
    def shape(self) -> dict[str, str]:
        """What a target's shape has of them; nothing where no option is given."""
        ttl = {} if self.ttl_s is None else {TTL: str(self.ttl_s)}
        return {**ttl, **self.columns}

    @property
    def described(self) -> dict[str, str]:
        """What is logged of them when a query starts: a text by its heading."""
        found = {}
        if self.ttl_s is not None:
            found["life"] = f"{self.ttl_s} s from when the row was published ({TTL})"
        if self.ttl_column:
            found["life"] = (
                f"seconds in {self.ttl_column}, from when the row was published ({TTL_COLUMN})"
            )
        if self.expires_column:
            found["life"] = f"until {self.expires_column} ({EXPIRES_COLUMN})"
        if self.event_column:
            found["newest"] = (
                f"of two versions of a row the one with the later {self.event_column}"
                f" ({EVENT_COLUMN})"
            )
        return found

    @property
    def details(self) -> dict[str, str]:
        """What a plan's details have of them; nothing where no option is given."""
        return {_DETAIL: msgspec.json.encode(self).decode()} if self.shape else {}

    def refuse_contradictions(self, operation: str) -> None:
        """Refuse options that contradict each other.

        :param operation: the value of `operationColumn`.
        :raises OptionError: two of them say how long a row lives, or one column has two meanings.
        """
        lives = [name for name in self.shape if name != EVENT_COLUMN]
        if len(lives) > 1:
            raise OptionError(
                f"Options {' and '.join(lives)} are given, and each says how long a row lives.",
                "Keep one of them.",
            )
        meanings = [*self.columns.items(), *([("operationColumn", operation)] * bool(operation))]
        for i, (option, column) in enumerate(meanings):
            for other, same in meanings[:i]:
                if same == column:
                    raise OptionError(
                        f"Options {other} and {option} both name column {column}.",
                        "Name a column for each of them.",
                    )


def latest_expiry_s(compatibility: str | None) -> int:
    """Return the last second at which a life may end, since 1970, a minute early.

    Before Cassandra 5, and there too until it is told that no node has to go back, it is kept in 31 bits.

    :param compatibility: the server's setting `storage_compatibility_mode`; None: it has none, or hides it.
    """
    return (2**32 - 3 if compatibility == "NONE" else 2**31 - 2) - 60


def for_server(times: RowTimes, latest_s: int, now_s: int) -> RowTimes:
    """Return the times with what the server takes.

    :param latest_s: see `latest_expiry_s`.
    :raises OptionError: a life as long as the option says ends after that.
    """
    most_s = min(MOST_TTL_S, latest_s - now_s)
    if times.ttl_s is not None and times.ttl_s > most_s:
        raise OptionError(
            f"Option {TTL} is {times.ttl_s}: such a life ends after {_date(latest_s)}, the last"
            " day that this server can keep as its end.",
            f"Take {most_s} or less. From Cassandra 5 on lives may end later once every node has"
            " storage_compatibility_mode: NONE in cassandra.yaml.",
        )
    return msgspec.structs.replace(times, latest_s=latest_s, most_ttl_s=most_s)


def planned_times(plan: Plan) -> RowTimes:
    """Return the times of a plan."""
    text = plan.details.get(_DETAIL)
    return _DECODER.decode(text) if text else NO_TIMES


def without_times(
    schema: pa.Schema, times: RowTimes, table: Collection[str], name: object
) -> pa.Schema:
    """Return the columns of a DataFrame that are written: without those of times that the table lacks.

    :param schema: without the operation column.
    :param table: the names of the columns that the table has, as the DataFrame calls them.
    :param name: of the table, as errors show it.
    :raises SchemaMismatch: the DataFrame lacks a column, or has another type; or the table has a column of
        the name that holds seconds.
    """
    for option, column in times.columns.items():
        kind = named_column(schema, option, column)
        if spark_type(kind) not in _TAKES[option]:
            raise SchemaMismatch(
                f"Column {column}, which {option} names, is {kind} in the DataFrame.",
                _REMEDIES[option],
            )
        if option == TTL_COLUMN:
            refuse_written(option, column, table, name, "seconds to live are")
    lacking = {column for column in times.columns.values() if column not in table}
    return pa.schema([field for field in schema if field.name not in lacking])


def with_times(columns: Sequence[Column], schema: pa.Schema) -> tuple[Column, ...]:
    """Return a plan's columns with those of times that the table lacks where the DataFrame has them.

    :param columns: those of `without_times`.
    :param schema: without the operation column.
    """
    by_name = {column.name: column for column in columns}
    return tuple(
        by_name.get(field.name)
        or Column(name=field.name, source=str(canonical(field.type)), type="time", role="time")
        for field in schema
    )


def _date(second: int) -> str:
    return "2038-01-19" if second < 2**31 else "2106-02-07"


NO_TIMES = RowTimes()
_DECODER = msgspec.json.Decoder(RowTimes)
