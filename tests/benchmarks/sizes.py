"""How much is measured: the sizes behind `make bench`, `--quick` and `--tiny`."""

from __future__ import annotations

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
    """Of other shapes, growth and pending epochs, which take long."""
    warm_up: int
    """Rows of the untimed round before the timed ones."""
    grouped: int
    grouped_slow: int
    """For who sends each row by itself, which takes minutes for what others do in seconds."""
    scattered: int
    shapes: int
    """For interleaved, narrow and wide rows."""
    sweep: int
    """For each setting of the search for the server's own limit."""
    settings: int | None
    """How many settings are searched at most; None for all."""
    micro_batches: int
    """Of every run that streams files."""
    growth: tuple[int, int]
    epochs: int
    """Small ones: of the latency, and of the overhead in each round."""
    every_ms: int
    """Between two small epochs."""
    pending: tuple[int, int]
    """How many small epochs wait, of how many rows each."""
    windows: tuple[int, ...]
    """Rows of windows that a thread or a Spark job flushes, ascending."""
    memory: int
    pause_s: float
    ages: tuple[int, ...]
    """How many starts, and epochs that `wal.retention` keeps, ascending; from 1,000 records on."""
    long: Long


DEFAULT = Sizes(
    rounds=3,
    side_rounds=2,
    warm_up=1_000_000,
    grouped=1_000_000,
    grouped_slow=60_000,
    scattered=500_000,
    shapes=200_000,
    sweep=200_000,
    settings=None,
    micro_batches=8,
    growth=(200_000, 2_000_000),
    epochs=100,
    every_ms=500,
    pending=(1_000, 1_000),
    windows=(50_000, 200_000, 800_000, 1_600_000),
    memory=5_000_000,
    pause_s=30,
    ages=(1_000, 10_000, 100_000),
    long=Long(epochs=10_000, rows=10_000, minutes=75, warm_up=20, sample_s=5),
)
QUICK = Sizes(
    rounds=1,
    side_rounds=1,
    warm_up=10_000,
    grouped=50_000,
    grouped_slow=10_000,
    scattered=20_000,
    shapes=20_000,
    sweep=20_000,
    settings=None,
    micro_batches=8,
    growth=(20_000, 100_000),
    epochs=15,
    every_ms=500,
    pending=(50, 100),
    windows=(5_000, 50_000),
    memory=200_000,
    pause_s=5,
    ages=(1_000, 5_000),
    long=Long(epochs=300, rows=10_000, minutes=5, warm_up=10, sample_s=2),
)
TINY = Sizes(
    rounds=1,
    side_rounds=1,
    warm_up=0,
    grouped=4_000,
    grouped_slow=800,
    scattered=2_000,
    shapes=2_000,
    sweep=2_000,
    settings=1,
    micro_batches=2,
    growth=(2_000, 4_000),
    epochs=5,
    every_ms=300,
    pending=(10, 20),
    windows=(500, 2_000),
    memory=8_000,
    pause_s=2,
    ages=(1_000, 1_200),
    long=Long(epochs=20, rows=1_000, minutes=1, warm_up=3, sample_s=0.5),
)
PARTITIONS = 2_000
SMALL = 1_000
"""Rows of a small epoch."""
