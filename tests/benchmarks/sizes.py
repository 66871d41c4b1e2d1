"""How much is measured: the sizes of `make bench`, `--quick` and `--tiny`."""

from __future__ import annotations

from typing import Any

import msgspec


class Long(msgspec.Struct, frozen=True, kw_only=True):
    """How long the long run is."""

    epochs: int
    """Where it ends."""
    rows: int
    """Of each epoch."""
    minutes: float
    """Where it ends at the latest."""
    warm_up: int
    """The first epochs, in which worker processes start."""
    sample_s: float
    """Between two samples."""


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Rows, epochs and seconds of all parts."""

    rounds: int
    side_rounds: int
    """Of other stores and pending epochs, which take long."""
    warm_up: int
    """Rows of the untimed round before the timed ones."""
    grouped: int
    scattered: int
    micro_batches: int
    """Of every run that streams files."""
    epochs: int
    """Small ones: of the latency, and of the overhead in each round."""
    every_ms: int
    """Between two small epochs."""
    pending: tuple[int, int]
    """How many small epochs wait, of how many rows each."""
    memory: int
    pause_s: float
    long: Long


_SIZES: dict[str, tuple[Any, Any, Any]] = {
    "rounds": (3, 1, 1),
    "side_rounds": (2, 1, 1),
    "warm_up": (1_000_000, 10_000, 0),
    "grouped": (1_000_000, 50_000, 4_000),
    "scattered": (500_000, 20_000, 2_000),
    "micro_batches": (8, 8, 2),
    "epochs": (100, 15, 5),
    "every_ms": (500, 500, 300),
    "pending": ((1_000, 1_000), (50, 100), (10, 20)),
    "memory": (5_000_000, 200_000, 8_000),
    "pause_s": (30, 5, 2),
    "long": (
        Long(epochs=10_000, rows=10_000, minutes=75, warm_up=20, sample_s=5),
        Long(epochs=300, rows=10_000, minutes=5, warm_up=10, sample_s=2),
        Long(epochs=20, rows=1_000, minutes=1, warm_up=3, sample_s=0.5),
    ),
}
"""Of each part without an option, with `--quick`, and with `--tiny`."""
DEFAULT, QUICK, TINY = (
    Sizes(**{name: sizes[option] for name, sizes in _SIZES.items()}) for option in range(3)
)
PARTITIONS = 2_000
SMALL = 1_000
"""Rows of a small epoch."""
