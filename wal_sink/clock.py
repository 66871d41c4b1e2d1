"""The clock of this host, in microseconds since 1970, as log and ledger have all times."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def now_us() -> int:
    """Return microseconds since 1970."""
    return time.time_ns() // 1_000


def iso(us: int) -> str:
    """Return microseconds since 1970 as ISO 8601 in UTC."""
    return datetime.fromtimestamp(us / 1_000_000, UTC).isoformat()
