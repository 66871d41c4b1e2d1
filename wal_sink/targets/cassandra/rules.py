"""What an index refuses of a column's values: kept in the plan, and applied to values as the log has them.

Finds the first value of a column, however deep, that Cassandra would refuse or could not hold.

Rows as errors show them: nothing but the key.

Reads the times that rows bring along, in the tasks: checked, as whole numbers, in columns of the log.

These columns stand behind those that are written, under names that no column of a DataFrame has: see
`publish.epoch_column`.
What a table has of an event time is rounded to milliseconds; here it has its microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.model.plan import Plan
from wal_sink.targets.arrow_values import FALSE, TRUE, long, not_deleted, null, plain, real, shorten
from wal_sink.targets.cassandra.casts import Constraint, as_is, count_in, lists_with, sizes, unnest
from wal_sink.targets.cassandra.row_plan import (
    EXPIRES_COLUMN,
    MOST_TTL_S,
    TTL_COLUMN,
    RowTimes,
    planned_times,
)
from wal_sink.targets.cassandra.types import NESTED, TYPES, CqlType

DETAIL = "indexes"
"""Under which name a plan's details have the rules; older plans, and those of tables without, have none."""

MOST = 1e17
"""Largest amount of a vector's element under SAI (`VectorValidation.MAX_FLOAT32_COMPONENT`)."""
LEAST = 1e-22
"""Where vectors are compared by cosine, the least amount that its largest element may have.

The square of 2^-75, about 3e-23, is 0 to a float, and so is the length of a vector of such elements: the
server then fails in the middle of a write, without an answer. It says the same of one of zeros in advance.
"""
_ENTRY = 6
"""Bytes that an index of a map's entries adds to key and value."""


Part = Literal["value", "elements", "keys", "values", "entries"]


class IndexRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one index takes of one column."""

    column: str
    """As the DataFrame calls it."""
    index: str
    """Name of the index, unquoted."""
    part: Part = "value"
    """What is indexed: the whole value, or each element, key, value or entry of a collection."""
    most_bytes: int = 0
    """Most bytes of it; 0: any number."""
    vector: Literal["", "finite", "cosine"] = ""
    """What is required of a vector: finite elements; or, to be compared by cosine, a direction as well."""


class Refused(NamedTuple):
    """The first value that an index refuses."""

    row: int
    problem: str
    """Continues "Column c of t (value) …"."""
    remedy: str
    rows: pa.Array
    """All that it refuses for this, as flags."""


def rules_text(rules: Sequence[IndexRule]) -> str:
    """Return the JSON of rules for a plan's details."""
    return msgspec.json.encode(rules).decode()


def planned_rules(plan: Plan) -> tuple[IndexRule, ...]:
    """Return the rules that a plan was made with."""
    return _read(plan.details.get(DETAIL, "[]"))


@lru_cache(maxsize=64)
def _read(text: str) -> tuple[IndexRule, ...]:
    return msgspec.json.decode(text, type=tuple[IndexRule, ...])


_read("[]")  # so that one thread learns the type, see `model.codec.learn`


def missing_rules(planned: Sequence[IndexRule], now: Sequence[IndexRule]) -> tuple[IndexRule, ...]:
    """Return the rules of now under which tasks with a plan could have let a value pass."""
    known = {_what(rule) for rule in planned}
    return tuple(rule for rule in now if _what(rule) not in known)


def _what(rule: IndexRule) -> tuple[object, ...]:
    return (rule.column, rule.part, rule.most_bytes, rule.vector)


def first_refused(rule: IndexRule, stored: pa.Array) -> Refused | None:
    """Find the first value that an index refuses; None when there is none.

    :param stored: the column as the log holds it, cast to its type.
    """
    found = _first_refused_vector(rule, stored) if rule.vector else None
    if found or not rule.most_bytes:
        return found
    too_long = _too_long(rule, stored)
    row = pc.index(too_long, TRUE).as_py()
    if row < 0:
        return None
    whole = {"value": "", "entries": "an entry of "}.get(rule.part, f"one of its {rule.part} of ")
    return Refused(
        row,
        f"has {whole}more than the {rule.most_bytes:,} bytes that the index {rule.index} takes",
        "Shorten it, or index a digest of it instead, sha2(col, 256)." + _WITHOUT,
        too_long,
    )


_WITHOUT = " If the index has to go: docs/cassandra.md#indexes."


def _first_refused_vector(rule: IndexRule, stored: pa.Array) -> Refused | None:
    offsets, elements = unnest(stored)
    amounts = pc.abs(elements)
    beyond = pc.invert(pc.less_equal(amounts, real(MOST)))  # NaN is not less
    bad = lists_with(offsets, beyond)
    row = pc.index(bad, TRUE).as_py()
    if row >= 0:
        return Refused(
            row,
            f"has an element that is NaN, infinite or beyond {MOST:g}, which the index {rule.index} refuses",
            "Repair or drop such rows, or write null in place of the vector." + _WITHOUT,
            bad,
        )
    if rule.vector != "cosine":
        return None
    large = pc.greater_equal(amounts, real(LEAST))
    without = pc.and_(pc.equal(count_in(offsets, large), long(0)), stored.is_valid())
    row = pc.index(without, TRUE).as_py()
    return (
        Refused(
            row,
            f"has zeros alone, or nothing of {LEAST:g} or more: it points nowhere, and the index {rule.index}"
            " compares directions (similarity_function cosine)",
            "Write null in place of it, as for the embedding of an empty text; or index by dot_product or"
            " euclidean." + _WITHOUT,
            without,
        )
        if row >= 0
        else None
    )


def _too_long(rule: IndexRule, stored: pa.Array) -> pa.Array:
    if rule.part == "value":
        return pc.greater(sizes(stored), long(rule.most_bytes))
    offsets, values = unnest(stored)
    if rule.part == "entries":
        keys, items = values.flatten()
        of_each = pc.add(pc.add(sizes(keys), sizes(items)), long(_ENTRY))
    elif rule.part == "elements":
        of_each = sizes(values)
    else:
        of_each = sizes(values.flatten()[0 if rule.part == "keys" else 1])
    return lists_with(offsets, pc.greater(of_each, long(rule.most_bytes)))


class InvalidValue(NamedTuple):
    """A value that breaks a constraint of its type."""

    row: int
    path: str
    value: pa.Scalar
    problem: str
    remedy: str
    rows: pa.Array
    """All rows that break it at this path, as flags; nulls count as False."""


def first_invalid_value(
    path: str, column: pa.Array, tree: CqlType, *, key: bool
) -> InvalidValue | None:
    """Return the first invalid value of a DataFrame's column; None when there is none.

    :param key: whether it is part of the primary key.
    """
    return next(_invalid_values(path, column, tree, key), None)


def _invalid_values(
    path: str, column: pa.Array, tree: CqlType, key: bool
) -> Iterator[InvalidValue]:
    if tree.kind in TYPES:
        known = TYPES[tree.kind]
        yield from _broken(path, column, known.constraints + (known.key_constraints if key else ()))
    elif tree.kind in ("tuple", "udt"):
        for i, field in enumerate(column.flatten()):
            name = column.type.field(i).name
            part = tree.parts[tree.fields.index(name) if tree.kind == "udt" else i]
            yield from _invalid_values(f"{path}.{name}", field, part, key)
    else:
        offsets, values = unnest(column)
        if tree.kind == "vector":
            yield from _wrong_lengths(path, column, offsets, tree.length)
        for invalid in _of_elements(path, values, tree, key):
            # The row is the last list that begins at or before the element; others that begin there
            # are empty.
            begins = pc.less_equal(offsets[:-1], long(invalid.row))
            yield invalid._replace(
                row=pc.sum(begins).as_py() - 1, rows=lists_with(offsets, invalid.rows)
            )


def _of_elements(path: str, values: pa.Array, tree: CqlType, key: bool) -> Iterator[InvalidValue]:
    columns, names = [values], ["element"]
    if tree.kind == "map":
        columns, names = values.flatten(), ["key", "value"]
    for name, elements, part in zip(names, columns, tree.parts, strict=True):
        inner = f"{path}.{name}"
        yield from _broken(inner, elements, NESTED[tree.kind].constraints)
        # Two keys of a map, or two elements of a set, must not become one.
        yield from _invalid_values(
            inner, elements, part, key or name == "key" or tree.kind == "set"
        )


def _broken(
    path: str, column: pa.Array, constraints: tuple[Constraint, ...]
) -> Iterator[InvalidValue]:
    for rule in constraints:
        bad = rule.bad(column)
        row = pc.index(bad, TRUE).as_py()
        if row >= 0:
            remedy = rule.remedy.replace("{name}", path)
            yield InvalidValue(row, path, column[row], rule.problem, remedy, bad)


def _wrong_lengths(
    path: str, column: pa.Array, offsets: pa.Array, length: int
) -> Iterator[InvalidValue]:
    lengths = pc.subtract(offsets[1:], offsets[:-1])
    bad = pc.and_(column.is_valid(), pc.not_equal(lengths, long(length)))
    row = pc.index(bad, TRUE).as_py()
    if row >= 0:
        yield InvalidValue(
            row,
            path,
            column[row],
            f"has {lengths[row].as_py()} elements, and the table's vector takes exactly {length}",
            "Drop such rows, or pad or cut the arrays: slice(c, 1, n).",
            bad,
        )


def row_text(batch: pa.RecordBatch, plan: Plan, row: int) -> str:
    """Name a row by its key."""
    return key_text(plan, [plain(values[row]) for values in batch.columns])


def key_text(plan: Plan, values: Sequence[Any]) -> str:
    """Name a row by its key, from its values in the order of the plan's columns."""
    key = ", ".join(
        f"{column.name}={shorten(value)}"
        for column, value in zip(plan.columns, values, strict=True)
        if column.role in ("partition", "clustering")
    )
    return f"the row with {key}"


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
