"""What an index refuses of a column's values: kept in the plan, and applied to values as the log has them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.model.plan import Plan
from wal_sink.targets.cassandra.types.unnest import count_in, lists_with, unnest
from wal_sink.targets.cassandra.types.value_sizes import sizes
from wal_sink.targets.values.literals import TRUE, long, real

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
