"""Long tests first, and in each process."""

from __future__ import annotations

from tests.order import dealt


def test_each_process_begins_with_its_share_of_the_long_tests() -> None:
    """As `worksteal` cuts the list, in halves here; equal ranks keep their order."""
    ranked = [(2, "a"), (0, "b"), (1, "c"), (2, "d"), (0, "e"), (1, "f")]
    assert dealt(ranked, 2) == ["e", "f", "d", "b", "c", "a"]
    assert dealt(ranked[:5], 2) == ["e", "a", "b", "c", "d"], "pieces of two and of three"
    assert dealt(ranked, 1) == ["b", "e", "c", "f", "a", "d"]
    assert dealt(ranked[:1], 3) == ["a"]
