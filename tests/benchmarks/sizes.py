"""The sizes of `make bench`, `--quick` and `--tiny`."""

from __future__ import annotations

from typing import Any

import msgspec


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of all parts: numbers of rows, of epochs, and seconds."""

    rounds: int
    side_rounds: int
    """The rounds of other stores and of pending epochs, which take long."""
    warm_up: int
    """The rows of the round that is not timed."""
    grouped: int
    scattered: int
    micro_batches: int
    """The epochs of a run that streams files."""
    epochs: int
    """The small epochs of `latency`, and of each round of `overhead`."""
    every_ms: int
    """The time between two small epochs."""
    pending: tuple[int, int]
    """The number of small pending epochs, and the rows of each."""
    memory: int
    pause_s: float


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
}
"""The sizes without an option, with `--quick`, and with `--tiny`."""
DEFAULT, QUICK, TINY = (
    Sizes(**{name: sizes[option] for name, sizes in _SIZES.items()}) for option in range(3)
)
PARTITIONS = 2_000
SMALL = 1_000
"""The rows of a small epoch."""
