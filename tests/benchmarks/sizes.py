"""The sizes of `make bench` and of `--quick`."""

from __future__ import annotations

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
    long: tuple[int, int]
    """The number of epochs of the long run, and the rows of each."""


DEFAULT = Sizes(
    rounds=3,
    side_rounds=2,
    warm_up=1_000_000,
    grouped=1_000_000,
    scattered=500_000,
    micro_batches=8,
    epochs=100,
    every_ms=500,
    pending=(1_000, 1_000),
    memory=5_000_000,
    pause_s=30,
    long=(10_000, 10_000),
)
QUICK = Sizes(
    rounds=1,
    side_rounds=1,
    warm_up=0,
    grouped=4_000,
    scattered=2_000,
    micro_batches=2,
    epochs=5,
    every_ms=300,
    pending=(10, 20),
    memory=8_000,
    pause_s=2,
    long=(60, 1_000),
)
PARTITIONS = 2_000
SMALL = 1_000
"""The rows of a small epoch."""
