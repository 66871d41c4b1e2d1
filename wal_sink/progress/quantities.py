"""Numbers as people read them."""

from __future__ import annotations

from datetime import timedelta

from rich.filesize import decimal


def byte_count(size: int) -> str:
    """Return a size as `1.3 MB`; decimal units."""
    return decimal(size)


def duration(seconds: float) -> str:
    """Return seconds as `4.2 s`, from a minute on as `1:02:03`, and with the days before it."""
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=int(seconds)))


def epoch_id(epoch: int) -> str:
    """Return the number of an epoch; -1 means none."""
    return "nothing yet" if epoch < 0 else str(epoch)


def ago(seconds: float) -> str:
    """Return how long something is ago in one unit, such as `4 s ago` or `3 h ago`."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:,.0f} {unit} ago"
    return f"{max(0.0, seconds):.0f} s ago"
