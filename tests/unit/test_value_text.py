"""Values of rows as text: nothing fails, nothing steers a terminal, nothing is endless."""

from __future__ import annotations

import pyarrow as pa
import pytest

from wal_sink.admin.inspect import value_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (pa.scalar(None, pa.string()), None),
        (pa.scalar("plain"), "plain"),
        (pa.scalar("a\x1b]0;title\x07\u202eb"), r"a\x1b]0;title\x07\u202eb"),
        (pa.scalar(b"\x00\xff"), "0x00ff"),
        (pa.scalar(b"\x00" * 1_000), "0x" + "0" * 77 + "…"),
        (pa.scalar(bytes(range(16)), pa.binary(16)), "00010203-0405-0607-0809-0a0b0c0d0e0f"),
        (pa.scalar(bytes(range(16))), "0x000102030405060708090a0b0c0d0e0f"),
        (pa.scalar([1, None, 2]), "[1, None, 2]"),
        (pa.scalar("é" * 81), "é" * 79 + "…"),
        (
            pa.scalar(475_464_427_227_387_904, pa.timestamp("us", tz="UTC")),
            "17036-11-13 12:00:27.387904Z",
        ),
    ],
)
def test_a_value(value: pa.Scalar, text: str | None) -> None:
    """Also one that Python has no type for."""
    assert value_text(value) == text


def test_a_value_inside_of_another_that_python_cannot_hold() -> None:
    """It is named by its type."""
    found = value_text(pa.scalar([2**62], pa.list_(pa.timestamp("us"))))
    assert found == "(a list<item: timestamp[us]> that cannot be shown)"
