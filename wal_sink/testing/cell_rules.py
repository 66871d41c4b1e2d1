"""Cassandra's rules for the cells of a row: which of two writes stays, what expires, what a reader sees."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import pyarrow as pa


class Cell(NamedTuple):
    """A value, None for a deletion, and its write timestamp in microseconds."""

    value: Any
    us: int
    ends_s: int | None = None
    """From which second on it is a deletion, since 1970; None: it lives for ever."""

    def at(self, now_s: int) -> Any:
        """Return the value at a second."""
        return None if self.ends_s is not None and self.ends_s <= now_s else self.value


class Row(NamedTuple):
    """The cells of a row by column, and the marker that its newest insert leaves."""

    cells: dict[str, Cell]
    marker: Cell

    def seen(self, now_s: int, deleted_us: int) -> dict[str, Any] | None:
        """Return what a reader sees at a second; None: there is no row.

        :param deleted_us: timestamp of the newest tombstone upon the row; -1 for none.
        """

        def value(cell: Cell) -> Any:
            return cell.at(now_s) if cell.us > deleted_us else None

        values = {name: value(cell) for name, cell in self.cells.items()}
        exists = value(self.marker) or any(each is not None for each in values.values())
        return values if exists else None


def newer(old: Cell | None, new: Cell, kind: pa.DataType) -> Cell:
    """Resolve two writes to one cell: of equal times a deletion wins, then what expires, later first."""
    if old is None:
        return new

    def rank(cell: Cell) -> tuple[int, bool, bool, int, bytes]:
        expires = cell.ends_s is not None
        return (
            cell.us,
            cell.value is None,
            expires,
            cell.ends_s or 0,
            _serialized(cell.value, kind),
        )

    return max(old, new, key=rank)


def _serialized(value: Any, kind: pa.DataType) -> bytes:
    """Return the bytes that Cassandra compares; of the types that tests use."""
    if value is None:
        return b""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if pa.types.is_floating(kind):
        return struct.pack(">d" if pa.types.is_float64(kind) else ">f", value)
    if pa.types.is_integer(kind):
        return int(value).to_bytes(kind.bit_width // 8, "big", signed=True)
    if isinstance(value, bool):
        return bytes([value])
    raise NotImplementedError(f"CellStore does not order values of type {kind}")
