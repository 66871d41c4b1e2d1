"""Through check and bind into the driver's own serializers and back, for every type and shape."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cql_driver import driver_type, plan_of_column
from tests.cql_values import FIELDS, SCALARS, Case, expected, plain, shapes, type_name
from wal_sink.targets.cassandra.check import check
from wal_sink.targets.cassandra.types import parse
from wal_sink.targets.cassandra.write.statements import bind

PROTOCOL = 5


def there_and_back(case: Case, values: list[Any]) -> list[Any]:
    """Check, bind, serialize and deserialize a column."""
    types = {type_name(each): tuple((name, each.cql) for name in FIELDS) for each in SCALARS}
    column = case.array(values)
    ids = pa.array(range(len(values)), pa.int32())
    batch = pa.record_batch({"id": ids, "c": column})
    planned = plan_of_column(case.cql, column.type, "write", types)
    # What is before a slice must not matter.
    stored = check(pa.concat_batches([batch[:1], batch])[min(1, len(values)) :], planned)
    shifted = pa.concat_batches([stored[:1], stored])[min(1, len(values)) :]
    bound = bind(shifted, planned, range(shifted.num_rows))
    kind = driver_type(parse(case.cql, types))
    return [
        None
        if row[1] is None
        else plain(kind.deserialize(kind.serialize(row[1], PROTOCOL), PROTOCOL))
        for row in bound.values
    ]


@pytest.mark.parametrize("case", SCALARS, ids=lambda case: f"{case.cql} {case.arrow}")
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_there_and_back(case: Case, data: st.DataObject) -> None:
    """Alone, in collections, tuples and user-defined types; with nulls where they are allowed."""
    for shape in shapes(case):
        values = data.draw(st.lists(st.none() | shape.values, max_size=5))
        back = there_and_back(shape, values)
        assert [
            each or None if shape.cql.startswith(("list", "set", "map")) else each for each in back
        ] == [expected(shape, value) for value in values]
