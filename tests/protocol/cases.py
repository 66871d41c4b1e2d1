"""How many cases the exploring tests went through; printed at the end of a run."""

from __future__ import annotations

CASES: dict[str, str] = {}
"""What was explored, and how much of it, in words."""


def covered(what: str, how_much: str) -> None:
    """Note what a test has gone through."""
    CASES[what] = how_much
