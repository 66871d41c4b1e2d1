"""Waits for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(condition: Callable[[], object], seconds: float = 60) -> bool:
    """Return True if a condition holds within some seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def until(condition: Callable[[], object], seconds: float = 60, reason: str = "") -> None:
    """Wait until a condition holds; fail if it does not hold within some seconds."""
    assert eventually(condition, seconds), reason or f"not within {seconds} s"
