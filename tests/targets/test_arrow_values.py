"""Texts that are not UTF-8, and dates unknown to Python, are refused at any depth."""

from __future__ import annotations

import pyarrow as pa
import pytest

from wal_sink.errors import InvalidRow
from wal_sink.targets.arrow_values import beyond_python, refuse_invalid_utf8

BAD = b"\xff\xfe"


def unchecked(*values: bytes | None, large: bool = False) -> pa.Array:
    """Return strings as Spark passes them: unvalidated bytes."""
    binary, text = (pa.large_binary(), pa.large_string()) if large else (pa.binary(), pa.string())
    return pa.array(values, binary).view(text)


def lists(offsets: list[int | None], values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def maps(offsets: list[int], keys: pa.Array, values: pa.Array) -> pa.Array:
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, values)


FLAT = unchecked(b"a", BAD, None, BAD)
WORDS = pa.array(["w", "x", "y", "z"])
CASES: dict[str, tuple[pa.Array, list[bool]]] = {
    "flat": (FLAT, [False, True, False, True]),
    "large": (
        unchecked(b"a", BAD, None, BAD, large=True),
        [False, True, False, True],
    ),
    "dictionary": (FLAT.dictionary_encode(), [False, True, False, True]),
    "struct": (pa.StructArray.from_arrays([FLAT], ["f"]), [False, True, False, True]),
    "list": (lists([0, 0, 2, 3, 4], FLAT), [False, True, False, True]),
    "list with nulls": (lists([0, None, 2, 3, 4], FLAT), [True, False, False, True]),
    "keys": (
        maps([0, 0, 1, 2, 4], unchecked(b"a", BAD, b"", b"b"), WORDS),
        [False, False, True, False],
    ),
    "values": (maps([0, 0, 1, 3, 4], WORDS, FLAT), [False, False, True, True]),
    "deep": (
        lists(
            [0, 0, 1, 2, 4], pa.StructArray.from_arrays([maps([0, 1, 2, 3, 4], WORDS, FLAT)], ["m"])
        ),
        [False, False, True, True],
    ),
}
IDS = pa.array([1, 2, 3, 4])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("begin", [0, 1])
def test_error_names_the_row_with_invalid_utf8(case: str, begin: int) -> None:
    """The error names the first row and flags all, also in a slice of a larger batch."""
    column, bad = CASES[case]
    batch = pa.record_batch([IDS, column], names=["id", "c"]).slice(begin)
    with pytest.raises(InvalidRow, match="Column c is not UTF-8") as caught:
        refuse_invalid_utf8(batch)
    first = begin + bad[begin:].index(True) + 1
    assert f"the row with id={first}, c=" in caught.value.what
    assert "make_valid_utf8" in caught.value.remedy
    assert (caught.value.column, caught.value.rows.to_pylist()) == ("c", bad[begin:])
    refuse_invalid_utf8(batch.filter(pa.array([not flag for flag in bad[begin:]])))


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["ä", None, "🚀", ""]),
        pa.array([BAD, None, b"", BAD]),
        FLAT.slice(2, 1).take(pa.array([0, 0, 0, 0])),
        pa.StructArray.from_arrays([FLAT], ["f"], mask=pa.array([False, True, False, True])),
        lists([0, 1, 2, 3, 4], FLAT)
        .filter(pa.array([True, False, True, False]))
        .take(pa.array([0, 1, 0, 1])),
        pa.ListArray.from_arrays(
            pa.array([0, 1, 2, 3, 4], pa.int32()), FLAT, mask=pa.array([False, True, False, True])
        ),
        pa.DictionaryArray.from_arrays(pa.array([0, 0, 2, 2], pa.int32()), FLAT),
    ],
    ids=["text", "binary", "null", "null structs", "filtered", "null lists", "not referred to"],
)
def test_bytes_under_a_null_are_not_checked(column: pa.Array) -> None:
    """Arrow validates bytes under a null and outside of a slice, too, but they are not values of a row."""
    refuse_invalid_utf8(pa.record_batch([IDS, column], names=["id", "c"]))


def test_dates_within_python_years_are_accepted() -> None:
    """The range is from the first day to the last microsecond, at any depth."""
    days, us = (-719_162, 2_932_896), (-62_135_596_800 * 10**6, 253_402_300_800 * 10**6 - 1)
    for type_, (first, last) in {
        pa.date32(): days,
        pa.timestamp("us"): us,
        pa.timestamp("us", "UTC"): us,
    }.items():
        fits = pa.array([first, None, last], type_)
        assert beyond_python(fits) is None
        assert [date for date in fits.to_pylist() if date is not None]
        for wrong in (first - 1, last + 1):
            column = pa.array([0, wrong, None], type_)
            flags = beyond_python(column)
            assert flags is not None
            assert flags.to_pylist() == [False, True, False]
            with pytest.raises((ValueError, OverflowError)):
                column.to_pylist()
    nested = pa.array([[0], [], [1, days[1] + 1]], pa.list_(pa.date32()))
    flags = beyond_python(nested)
    assert flags is not None
    assert flags.to_pylist() == [False, False, True]
    assert beyond_python(pa.array([2**63 - 1, -(2**63)], pa.timestamp("ns"))) is None
    assert beyond_python(pa.array([2**63 - 1])) is None
