"""Long tests first, and in each process."""

from __future__ import annotations

from tests.order import Rank, dealt


def test_each_process_begins_with_its_share_of_the_long_tests() -> None:
    """As `worksteal` cuts the list, in halves here; equal ranks keep their order."""
    lengths = [(2, "a"), (0, "b"), (1, "c"), (2, "d"), (0, "e"), (1, "f")]
    ranked = [(Rank(length, test), test) for length, test in lengths]
    assert dealt(ranked, 2) == ["e", "f", "d", "b", "c", "a"]
    assert dealt(ranked[:5], 2) == ["e", "a", "b", "c", "d"], "pieces of two and of three"
    assert dealt(ranked, 1) == ["b", "e", "c", "f", "a", "d"]
    assert dealt(ranked[:1], 3) == ["a"]


def test_what_shares_a_node_stays_together() -> None:
    """In one process; the others get the next groups, and the short tests make the pieces equal."""
    groups = [(0, "x", "a"), (1, "y", "bcd"), (1, "z", "ef"), *((2, each, each) for each in "ghij")]
    ranked = [(Rank(length, group), test) for length, group, tests in groups for test in tests]
    assert dealt(ranked, 2) == ["b", "c", "d", "h", "j", "a", "e", "f", "g", "i"]
