"""Rows that are written where there is none of their key yet: the option, and what plans have of it. Pure.

Refuses options that contradict another one, by a table of the reasons. Pure.

By which statement rows are written: the option, and what the plan has of it. Pure.

How sets and maps are written, by column: whole, added to, or taken from: the options, and the plan. Pure.

To add an element writes its cell, to take one out deletes its cell, each with the row's timestamp: either may
be repeated, and changes nothing when it comes late.

The clustering columns in the table's order: by a prefix of them a delete takes a range of rows.

What is said of the rows' times: by the options, and in the plan. Pure.

A **life** is given as seconds, or as the time at which it ends. An **event time** is the write timestamp of
its row. `read` checks the values in the tasks, `lives` turns lives into what is sent.

What is said of totals: by the options, and in the plan. Pure.

An **added** column holds a total. What a row has in it is added to what the table holds, and `ADDED_COLUMN`
says, in the same row of the table, up to which row of which query that was done (rule 27).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Literal, get_args

import msgspec
import pyarrow as pa
from msgspec import Meta

from wal_sink.errors import OptionError, SchemaMismatch
from wal_sink.model.plan import ABSENT, Column, Plan, canonical, spark_type
from wal_sink.options import COLUMN, SECONDS, of_column
from wal_sink.targets.operations import named_column, refuse_written

_NOT_GIVEN = (None, "", "insert", False)


def refuse_beside(option: str, reasons: Mapping[str, str], given: Mapping[str, object]) -> None:
    """Refuse options that contradict one that is given.

    :param reasons: by the names of options, why they do, and what to do: two sentences.
    :param given: values of other options by their names; those that are empty or the default are not given.
    :raises OptionError: one of them is given.
    """
    for other, why in reasons.items():
        if given.get(other) not in _NOT_GIVEN:
            reason, _, remedy = why.partition(". ")
            raise OptionError(
                f"Options {option} and {other} are given together: {reason}.", f"{remedy}."
            )


IF_NOT_EXISTS = "cassandra.ifNotExists"

IfNotExists = Annotated[
    bool,
    Meta(
        description="true: a row is written where there is none of its key yet, by a round of Paxos for each;"
        " false: of the rows of a key the newest one stays"
    ),
]

_BY_ITSELF = "Leave out one of the two; or write such rows by a query of their own"
_BESIDE_IF_NOT_EXISTS = {
    "cassandra.timestampColumn": "Cassandra itself dates an insert that has a condition, so no event can"
    f" decide. {_BY_ITSELF}",
    "operationColumn": "a repeated insert would bring back what a delete behind it has deleted."
    f" {_BY_ITSELF}",
    "cassandra.writeMode": f"an UPDATE has no such condition. {_BY_ITSELF}",
    "cassandra.collections.<column>": f"elements are changed by UPDATE. {_BY_ITSELF}",
    "cassandra.addColumns": f"totals are written over and over. {_BY_ITSELF}",
}
"""Options that contradict it: why, and what to do."""


def refuse_beside_if_not_exists(if_not_exists: bool, given: Mapping[str, object]) -> None:
    """Refuse options that contradict the condition.

    :param if_not_exists: the value of the option.
    :param given: values of other options by their names; those that are empty or the default are not given.
    :raises OptionError: one of them is given.
    """
    if if_not_exists:
        refuse_beside(IF_NOT_EXISTS, _BESIDE_IF_NOT_EXISTS, given)


def absent_shape(if_not_exists: bool) -> dict[str, str]:
    """Return what a target's shape has of the option: nothing for its default."""
    return {IF_NOT_EXISTS: "true"} if if_not_exists else {}


def absent_details(if_not_exists: bool) -> dict[str, str]:
    """Return what a plan's details have of the option."""
    return {ABSENT: "true"} if if_not_exists else {}


def only_absent(plan: Plan) -> bool:
    """Whether a row is written only where there is none of its key."""
    return ABSENT in plan.details


WRITE_MODE = "cassandra.writeMode"

WriteMode = Annotated[
    Literal["insert", "update"],
    Meta(
        description="insert: a row without values exists, too; update: a row exists as long as one of its"
        " values does"
    ),
]

_WRITE_DETAIL = "write"
"""Under which name a plan's details have it; a plan for inserts has none."""


def mode_beside(mode: str, changes: Collection[str]) -> str:
    """Return how rows are written whose collections are changed: an INSERT only writes them whole.

    :param changes: the columns of collections that are added to, or taken from.
    """
    return "update" if changes else mode


def mode_shape(mode: str) -> dict[str, str]:
    """Return what a target's shape has of the option: nothing for its default."""
    return {WRITE_MODE: mode} if mode == "update" else {}


def mode_details(mode: str) -> dict[str, str]:
    """Return what a plan's details have of the option."""
    return {_WRITE_DETAIL: mode} if mode == "update" else {}


def updates(plan: Plan) -> bool:
    """Whether rows are written by UPDATE."""
    return plan.details.get(_WRITE_DETAIL) == "update"


def static_alone(plan: Plan) -> bool:
    """Whether rows are partitions: their static columns are written, and no clustering column is known."""
    return updates(plan) and not any(column.role == "clustering" for column in plan.columns)


COLLECTIONS = f"cassandra.collections.{COLUMN}"

Change = Literal["add", "remove"]
"""What is done to a collection that is not written whole."""

_OVERWRITE = "overwrite"
_WORDS = (_OVERWRITE, *get_args(Change))

CollectionModes = Annotated[
    dict[str, str],
    Meta(
        description="of a set or a map that is not frozen: overwrite, it is written whole; add, elements are"
        " added to what the row has; remove, they are taken out, those of a map by an array of keys"
    ),
]

_COLLECTIONS_DETAIL = "collections"
"""Under which name a plan's details have the changes by column, as a JSON object; others have none."""


def option_of(column: str) -> str:
    """Return the name of the option for a column."""
    return of_column(COLLECTIONS, column)


def read_modes(given: Mapping[str, str]) -> Mapping[str, Change]:
    """Return what is done to collections that are not written whole, by column in lower case.

    :raises OptionError: a word is unknown.
    """
    words = {column: word.strip().lower() for column, word in given.items()}
    for column, word in words.items():
        if word not in _WORDS:
            raise OptionError(
                f"Option {option_of(column)} is {given[column]}.",
                f"Write one of {', '.join(_WORDS)}: the column is written whole, its elements are added to"
                " what the row has, or taken out.",
            )
    return {c: msgspec.convert(word, Change) for c, word in words.items() if word != _OVERWRITE}


def changes_of(modes: Mapping[str, Change], columns: Iterable[str]) -> dict[str, Change]:
    """Return what is done to columns, by their names as the DataFrame has them.

    :param modes: as `read_modes` returns them.
    """
    return {name: modes[name.lower()] for name in columns if name.lower() in modes}


def modes_shape(modes: Mapping[str, Change]) -> dict[str, str]:
    """Return what a target's shape has of the options: nothing where collections are written whole."""
    return {option_of(column): modes[column] for column in sorted(modes)}


def changes_details(changes: Mapping[str, Change]) -> dict[str, str]:
    """Return what a plan's details have of the changes, by the DataFrame's names of the columns."""
    return {_COLLECTIONS_DETAIL: msgspec.json.encode(changes).decode()} if changes else {}


def planned_changes(plan: Plan) -> Mapping[str, Change]:
    """Return what is done to a plan's collections that are not written whole, by column."""
    return _read_changes(plan.details.get(_COLLECTIONS_DETAIL, "{}"))


def taking_out(plan: Plan) -> Plan:
    """Return the plan with elements taken out where it has them added: those of rows whose life is over."""
    changes: dict[str, Change] = dict.fromkeys(planned_changes(plan), "remove")
    return msgspec.structs.replace(plan, details=plan.details | changes_details(changes))


def with_values(columns: Sequence[Column], changes: Mapping[str, Change]) -> list[Column]:
    """Return the columns into which values are written, not only taken out of."""
    return [column for column in columns if changes.get(column.name) != "remove"]


@lru_cache(maxsize=64)
def _read_changes(text: str) -> Mapping[str, Change]:
    return msgspec.json.decode(text, type=dict[str, Change])


_read_changes("{}")  # so that one thread learns the type, see `model.codec.learn`


CLUSTERING_DETAIL = "clustering"
"""Under which name the details of a plan with deletes have them, as a JSON array."""


def clustering_details(names: Sequence[str]) -> dict[str, str]:
    """Return what a plan's details have of them.

    :param names: as the DataFrame calls them, in the table's order, which is not the DataFrame's.
    """
    return {CLUSTERING_DETAIL: json.dumps(list(names))}


def clustering_of(plan: Plan) -> tuple[str, ...]:
    """Return the names, in the table's order; only for a plan with an operation column."""
    return tuple(json.loads(plan.details[CLUSTERING_DETAIL]))


TTL = "cassandra.ttl"
TTL_COLUMN = "cassandra.ttlColumn"
EXPIRES_COLUMN = "cassandra.expiresAtColumn"
EVENT_COLUMN = "cassandra.timestampColumn"

MOST_TTL_S = 20 * 365 * 86_400
"""The longest life that Cassandra takes, in seconds."""

Ttl = Annotated[
    Annotated[int, Meta(ge=1, le=MOST_TTL_S)] | None,
    Meta(
        description=f"how long every row lives from when it was published, 1 to {MOST_TTL_S} seconds;"
        " default: for ever, or what the table says",
        extra=SECONDS,
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
_TIMES_DETAIL = "times"
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
        return {_TIMES_DETAIL: msgspec.json.encode(self).decode()} if self.shape else {}

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
    text = plan.details.get(_TIMES_DETAIL)
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


ADD_COLUMNS = "cassandra.addColumns"
ADD_COLUMNS_AFTER = "cassandra.addColumnsAfter"

ADDED_COLUMN = "wal_sink_added"
"""The column of the table that says, of each row, what is in its totals."""

AddColumns = Annotated[
    str,
    Meta(
        description="columns, comma-separated, whose values are added to what the table holds, which has a"
        f" column {ADDED_COLUMN} text for it"
    ),
]
AddColumnsAfter = Annotated[
    str,
    Meta(
        description="ids of queries, comma-separated, that have added to the table before, and never will"
        " again"
    ),
]

READ_LEVELS: Mapping[str, str] = {
    "QUORUM": "QUORUM",
    "LOCAL_QUORUM": "LOCAL_QUORUM",
    "EACH_QUORUM": "LOCAL_QUORUM",
    "ALL": "QUORUM",
}
"""At which level totals are read, by the level of writes: so that a read sees every acknowledged write."""

_TOTALS_DETAIL = "added"
"""Under which name a plan's details have the columns, as a JSON list."""
_BESIDE_TOTALS = {
    "operationColumn": "a delete takes what was added along, and which row was the last: a flush that is"
    " repeated would add again what lies before it. Set a total to null by a query of its own",
    "tables": "each row has one total to be added to. Write each table by a query of its own, or make them"
    " several targets: docs/targets.md",
    "cassandra.ttl": "a total that expires forgets what was added. Leave out the life",
    "cassandra.ttlColumn": "a total that expires forgets what was added. Leave out the life",
    "cassandra.expiresAtColumn": "a total that expires forgets what was added. Leave out the life",
    "cassandra.timestampColumn": "totals are added in the order of the rows, whenever their events were."
    " Leave out the event time",
    "cassandra.writeMode": "totals are written by INSERT. Leave out update",
    "cassandra.collections.<column>": "of several rows of a key the newest one's elements would be written"
    " alone. Write sets and maps by a query of their own, or whole",
}
"""Options that contradict totals: why, and what to do."""


def names(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated text."""
    return tuple(name for part in text.split(",") if (name := part.strip()))


def refuse_beside_totals(text: str, given: Mapping[str, object]) -> None:
    """Refuse options that contradict totals.

    :param text: the value of the option.
    :param given: values of other options by their names; those that are empty or the default are not given.
    :raises OptionError: one of them is given, or a column is named twice.
    """
    if len(set(names(text))) < len(names(text)):
        raise OptionError(
            f"Option {ADD_COLUMNS} names a column twice: {text}.", "Name each one once."
        )
    if names(text):
        refuse_beside(ADD_COLUMNS, _BESIDE_TOTALS, given)


def read_level(level: str) -> str:
    """Return at which consistency level totals are read.

    :param level: of writes.
    :raises OptionError: no read is certain to see what was written at it.
    """
    if level not in READ_LEVELS:
        raise OptionError(
            f"Option cassandra.consistencyLevel is {level}: a total is read before it is written, and this"
            " level does not promise that the read sees what was written last.",
            f"With {ADD_COLUMNS} use {' or '.join(READ_LEVELS)}.",
        )
    return READ_LEVELS[level]


def totals_shape(text: str) -> dict[str, str]:
    """Return what a target's shape has of the option; nothing where it is not given."""
    return {ADD_COLUMNS: ",".join(names(text))} if names(text) else {}


def totals_details(text: str) -> dict[str, str]:
    """Return what a plan's details have of the option; nothing where it is not given."""
    return {_TOTALS_DETAIL: msgspec.json.encode(names(text)).decode()} if names(text) else {}


def as_planned(plan: Plan) -> Plan:
    """Return a plan as it is kept: one session writes the rows where their order decides.

    Totals are added in it, and of rows that are written where there is none the first one stays.
    """
    return plan.of_one_session() if added_columns(plan) or only_absent(plan) else plan


def totals_described(text: str) -> dict[str, str]:
    """Return what is logged of them when a query starts: a text by its heading."""
    if not names(text):
        return {}
    return {"totals": f"{', '.join(names(text))} are added to what the table holds ({ADD_COLUMNS})"}


def added_columns(plan: Plan) -> tuple[str, ...]:
    """Return the names of the columns, in the DataFrame, whose values are added; empty for none."""
    text = plan.details.get(_TOTALS_DETAIL)
    return msgspec.json.decode(text, type=tuple[str, ...]) if text else ()


def with_added(plan: Plan) -> Plan:
    """Return the plan by which totals are written: with the column that says what is in them."""
    column = Column(name=ADDED_COLUMN, source="string", type="text", role="regular")
    return msgspec.structs.replace(plan, columns=(*plan.columns, column))
