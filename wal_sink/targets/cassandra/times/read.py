"""Reads the times that rows bring along, in the tasks: checked, as whole numbers, in columns of the log.

These columns stand behind those that are written, under names that no column of a table has by accident.
What a table has of an event time is rounded to milliseconds; here it has its microseconds.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.model.plan import Plan
from wal_sink.targets.cassandra.times.given import (
    EXPIRES_COLUMN,
    MOST_TTL_S,
    TTL_COLUMN,
    RowTimes,
    planned_times,
)
from wal_sink.targets.cassandra.types.invalid_value import InvalidValue
from wal_sink.targets.cassandra.types.scalar_casts import as_is
from wal_sink.targets.values.literals import FALSE, TRUE, long, null
from wal_sink.targets.values.operations import not_deleted

LIFE_S = "wal_sink:ttl_s"
"""Seconds that a row lives; null for a delete."""
EXPIRES_US = "wal_sink:expires_us"
"""When it expires, microseconds since 1970; null for a delete."""
EVENT_US = "wal_sink:timestamp_us"
"""Its write timestamp, microseconds since 1970."""

AHEAD_S = 3_600
"""How far an event time may lie ahead of the task's clock, in seconds."""
_SECOND_US = 1_000_000
_LEAST_US = 10**15
"""2001-09-09: a bigint below that counts milliseconds or seconds."""


class Read(NamedTuple):
    """The columns of a batch, and the first value that cannot be taken."""

    columns: dict[str, pa.Array]
    invalid: InvalidValue | None


class _Rule(NamedTuple):
    bad: pa.Array
    problem: str
    remedy: str


def read_times(batch: pa.RecordBatch, plan: Plan, deletes: pa.Array | None, now_us: int) -> Read:
    """Read the times of a DataFrame's rows.

    :param deletes: which rows are deletes, and do not expire; None: no row is one.
    :param now_us: the task's clock, microseconds since 1970.
    """
    times = planned_times(plan)
    columns: dict[str, pa.Array] = {}
    for option, name in times.columns.items():
        given = as_is(batch.column(name))
        values = given.cast(pa.int64())
        if option == TTL_COLUMN:
            columns[LIFE_S], rules = _alive(values, deletes), _of_seconds(values, deletes, times)
        elif option == EXPIRES_COLUMN:
            columns[EXPIRES_US] = _alive(values, deletes)
            rules = _of_expiry(values, deletes, times, now_us)
        else:
            columns[EVENT_US] = values
            is_number = pa.types.is_integer(given.type)
            rules = _of_events(values, now_us, is_number=is_number)
        for rule in rules:
            row = pc.index(rule.bad, TRUE).as_py()
            if row >= 0:
                remedy = rule.remedy.replace("{name}", name)
                problem = f"{rule.problem} ({option})"
                return Read(columns, InvalidValue(row, name, given[row], problem, remedy, rule.bad))
    return Read(columns, None)


def _alive(values: pa.Array, deletes: pa.Array | None) -> pa.Array:
    return values if deletes is None else pc.if_else(deletes, null(pa.int64()), values)


def _of_seconds(values: pa.Array, deletes: pa.Array | None, times: RowTimes) -> list[_Rule]:
    most_s = times.most_ttl_s
    keep = "Fill it in, .na.fill(…), or write rows that live for ever by a query of their own."
    return [
        _Rule(not_deleted(values.is_null(), deletes), "is null, and not seconds to live", keep),
        _Rule(
            _bad(pc.less(values, long(1)), deletes),
            "is not one second to live or more",
            "Drop such rows; or write a delete, by operationColumn, for those that shall go.",
        ),
        _Rule(
            _bad(pc.greater(values, long(most_s)), deletes),
            f"is more than the {most_s} seconds that the server takes",
            f'Take the smaller of the two: least("{{name}}", lit({most_s})).',
        ),
    ]


def _of_expiry(
    values: pa.Array, deletes: pa.Array | None, times: RowTimes, now_us: int
) -> list[_Rule]:
    latest_us = now_us + MOST_TTL_S * _SECOND_US
    if times.latest_s:
        latest_us = min(latest_us, times.latest_s * _SECOND_US)
    return [
        _Rule(
            not_deleted(values.is_null(), deletes),
            "is null, and not a time of expiry",
            "Fill it in, or write rows that live for ever by a query of their own.",
        ),
        _Rule(
            _bad(pc.greater(values, long(latest_us)), deletes),
            "is later than the server can keep as a time of expiry",
            f'Take an earlier one: least("{{name}}", timestamp_seconds(lit({latest_us // _SECOND_US}))).',
        ),
    ]


def _of_events(values: pa.Array, now_us: int, *, is_number: bool) -> list[_Rule]:
    ahead_us = now_us + AHEAD_S * _SECOND_US
    early = "is before 2001 as microseconds" if is_number else "is not after 1970"
    return [
        _Rule(
            values.is_null(),
            "is null, and not the time of an event",
            'Drop such rows, .na.drop(subset=["{name}"]), or fill them in.',
        ),
        _Rule(
            _bad(pc.less(values, long(_LEAST_US if is_number else 1))),
            early,
            'Milliseconds and seconds become instants by timestamp_millis("{name}") and'
            ' timestamp_seconds("{name}"); drop rows without a time.',
        ),
        _Rule(
            _bad(pc.greater(values, long(ahead_us))),
            f"is more than {AHEAD_S} seconds ahead of the clock, and would hide what comes until then",
            "Correct the clock or time zone that it comes from; or bound it:"
            ' least("{name}", current_timestamp()).',
        ),
    ]


def _bad(flags: pa.Array, deletes: pa.Array | None = None) -> pa.Array:
    return not_deleted(pc.fill_null(flags, FALSE), deletes)
