"""The source of the soak: events of devices, a file a minute of event time, and what has to come of them."""

from __future__ import annotations

import os
import random
import threading
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.parquet

SCHEMA = "at timestamp, device int, value bigint"
DEVICES = 50

_ARROW = pa.schema(
    [("at", pa.timestamp("us", "UTC")), ("device", pa.int32()), ("value", pa.int64())]
)
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_EVENTS = 200
_EVERY_S = 0.7

Window = tuple[datetime, int, int, int]
"""When it opened (UTC, naive), the device, how many events, the sum of their values."""


class Background(threading.Thread):
    """Runs until its `with` block is left, which sets `_left`."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._left = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self.join()


class Feed(Background):
    """Writes a file now and then until the `with` block is left.

    :param seed: of what is in the files.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__("soak-feed")
        folder.mkdir(parents=True)
        self._folder = folder
        self._random = random.Random(seed)
        self._minute = 0
        self._windows: dict[tuple[datetime, int], list[int]] = defaultdict(list)
        self.write()  # Spark wants to see a file

    def run(self) -> None:
        """Write until told to end."""
        while not self._left.wait(_EVERY_S):
            self.write()

    def write(self) -> None:
        """Write the events of the next minute."""
        opened = _BEGIN + timedelta(minutes=self._minute)
        rows = []
        for _ in range(_EVENTS):
            at = opened + timedelta(seconds=self._random.uniform(0, 59))
            device, value = self._random.randrange(DEVICES), self._random.randrange(1_000)
            rows.append({"at": at, "device": device, "value": value})
            self._windows[opened.replace(tzinfo=None), device].append(value)
        hidden = self._folder / f".{self._minute:06}"
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows, _ARROW), hidden)
        os.utime(hidden, (self._minute, self._minute))  # Spark reads the oldest first
        hidden.rename(self._folder / f"{self._minute:06}.parquet")
        self._minute += 1

    def closed(self) -> list[Window]:
        """Return the windows that the watermark of the last file closes: all but its own."""
        last = _BEGIN.replace(tzinfo=None) + timedelta(minutes=self._minute - 1)
        return [
            (opened, device, len(values), sum(values))
            for (opened, device), values in self._windows.items()
            if opened < last
        ]
