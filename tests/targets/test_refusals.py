"""The error for rows that the server refuses."""

from __future__ import annotations

import pyarrow as pa
import pytest

from wal_sink.errors import InvalidRow
from wal_sink.model.plan import Column, Plan
from wal_sink.targets.base import RowSlice
from wal_sink.targets.casts import recast, stored_by
from wal_sink.targets.cdc import new_row_error
from wal_sink.targets.refusals import refusal

PLAN = Plan(
    key="key",
    target="sql",
    table='"shop"."orders"',
    columns=(
        Column(name="id", source="int64", type="bigint", role="regular"),
        Column(name="n", source="int64", type="smallint", role="regular"),
    ),
)


def rows(count: int) -> RowSlice:
    return RowSlice(5, pa.record_batch([range(count), [7, 70_000][:count]], ["id", "n"]), 1)


@pytest.mark.parametrize(
    ("count", "refused"),
    [
        (1, "a row of epoch 5 (the row with id=0, n=7)"),
        (2, "one of 2 rows of epoch 5 (the first is the row with id=0, n=7)"),
    ],
)
def test_error_counts_refused_rows_and_names_the_first(count: int, refused: str) -> None:
    text = refusal(PLAN, rows(count), ValueError("no")).what
    assert text == f"shop.orders refuses {refused}: ValueError: no"
    text = refusal(PLAN, rows(count), new_row_error()).what
    assert text.startswith(f"shop.orders refuses {refused}: The table has no row of this key")


def test_error_of_a_refusing_check_shows_row_once() -> None:
    refused = rows(2)
    with pytest.raises(InvalidRow) as caught:
        recast(refused.batch, PLAN, stored_by({"bigint": pa.int64(), "smallint": pa.int16()}.get))
    assert refusal(PLAN, refused, caught.value).what == (
        'shop.orders refuses a row of epoch 5: Column n of "shop"."orders" (70000) does not fit into'
        " smallint, in the row with id=1, n=70000"
    )
