"""Counts the cases of the exploring tests. The counts are printed at the end of a run."""

from __future__ import annotations

CASES: dict[str, str] = {}
"""How many cases a test has explored, by a description of the cases."""


def covered(what: str, how_much: str) -> None:
    """Record the number of cases that a test has explored, which pytest prints at its end."""
    CASES[what] = how_much
