"""The source of the soak: changes of customers, some of which are refused."""

from __future__ import annotations

import os
import random
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from tests.support.background import Background

SCHEMA = (
    "seq bigint, customerId int, day int, op string, amount string, points string, device binary,"
    " expires timestamp, note string, city string, tag string"
)
CUSTOMERS, DAYS = 40, 5
LONG = 70_000
"""The number of characters of a note that its index refuses."""
MOST_LIFE_S = 25
"""The longest of the short TTLs: such rows expire soon after the source ends."""

_ARROW = pa.schema(
    [
        ("seq", pa.int64()),
        ("customerId", pa.int32()),
        ("day", pa.int32()),
        ("op", pa.string()),
        ("amount", pa.string()),
        ("points", pa.string()),
        ("device", pa.binary()),
        ("expires", pa.timestamp("us", "UTC")),
        ("note", pa.string()),
        ("city", pa.string()),
        ("tag", pa.string()),
    ]
)
_CHANGES = 40
_EVERY_S = 0.7
_DAY_S = 86_400


class Changes(Background):
    """Writes a file of changes now and then, until the `with` block is left.

    :param seed: determines the changes, except the times at which rows expire.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__("soak-changes")
        folder.mkdir(parents=True)
        self._folder = folder
        self._random = random.Random(seed)
        self._files = 0
        self.long_notes = False
        """True if some notes are too long for the index."""
        self.changes: list[dict[str, Any]] = []
        self.write()  # Spark's file source needs a file at its start

    def work(self) -> None:
        """Write files until the end."""
        while not self._left.wait(_EVERY_S):
            self.write()

    def write(self) -> None:
        """Write a file of changes."""
        rows = [self._change(len(self.changes) + i) for i in range(_CHANGES)]
        if self.long_notes:
            rows[-1] |= {"note": "x" * LONG, **_GOOD}
        hidden = self._folder / f".{self._files:06}"
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows, _ARROW), hidden)
        os.utime(hidden, (self._files, self._files))  # Spark reads the oldest file first
        hidden.rename(self._folder / f"{self._files:06}.parquet")
        self.changes += rows
        self._files += 1

    def _change(self, seq: int) -> dict[str, Any]:
        chance = self._random
        life_s = chance.choice([chance.randint(1, MOST_LIFE_S), _DAY_S, 2 * _DAY_S])
        row = {
            "seq": seq,
            "customerId": chance.randrange(CUSTOMERS),
            "day": chance.randrange(DAYS),
            "op": "D" if chance.random() < 0.15 else "U",
            "amount": f"{chance.randrange(10**45)}.{chance.randrange(1_000):03}",
            "points": str(chance.randrange(10**60)),
            "device": chance.randbytes(16),
            "expires": datetime.fromtimestamp(time.time() + life_s, UTC),
            "note": chance.choice([None, f"note {seq}"]),
            "city": chance.choice([None, f"city {seq}"]),
            "tag": chance.choice([None, f"tag {seq}"]),
        }
        return row | chance.choice(_BAD) if chance.random() < 0.02 else row


_GOOD = {"customerId": 0, "op": "U", "amount": "1", "device": bytes(16)}
_BAD: list[dict[str, Any]] = [
    # A delete without the customer would delete all customers of a day.
    {"op": "U", "customerId": None},
    {"op": "?"},
    {"op": "U", "amount": "twelve"},
    {"op": "U", "device": b"short"},
]


def is_bad(change: dict[str, Any]) -> bool:
    """Return True if the tasks must refuse a change."""
    return any(all(change[name] == value for name, value in bad.items()) for bad in _BAD)


def is_long(change: dict[str, Any]) -> bool:
    """Return True if the index on notes refuses a change."""
    return len(change["note"] or "") >= LONG
