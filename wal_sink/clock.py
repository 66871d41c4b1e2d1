"""The clock of this host, in the unit of everything that the log and the ledger hold."""

from __future__ import annotations

import time


def now_us() -> int:
    """Return microseconds since 1970."""
    return time.time_ns() // 1_000
