"""Cassandra's rules for the cells of a row: which of two writes stays, what expires, what a reader sees."""

from __future__ import annotations

import struct
from collections.abc import Mapping
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


class ListElement(NamedTuple):
    """An element of a list. The server tells two writes of it apart, also those of one timestamp."""

    number: int
    """The server's own, which no writer chooses; elements come in its order."""
    value: Any
    us: int


class List(NamedTuple):
    """A list that is not frozen: each write deletes what is older than itself, and adds elements."""

    deleted_us: int
    elements: tuple[ListElement, ...]

    @property
    def us(self) -> int:
        """The newest write timestamp."""
        return max((each.us for each in self.elements), default=self.deleted_us)

    def merged(self, other: List) -> List:
        """Return what two writes leave."""
        deleted_us = max(self.deleted_us, other.deleted_us)
        elements = {each for each in (*self.elements, *other.elements) if each.us > deleted_us}
        return List(deleted_us, tuple(sorted(elements, key=lambda each: each.number)))

    def seen(self, deleted_us: int) -> list[Any] | None:
        """Return the elements, None for none of them.

        :param deleted_us: timestamp of the newest tombstone upon the row; -1 for none.
        """
        return [each.value for each in self.elements if each.us > deleted_us] or None


class Element(NamedTuple):
    """The place of a cell in a set or a map that is not written whole."""

    column: str
    key: Any
    """The element of a set, the key of an entry."""


Place = str | Element
"""Of a cell in a row: a column, or an element of one."""

IN_SET = "in the set"
"""The value of the cell of a set's element."""


class Row(NamedTuple):
    """The cells of a row by their places, and the marker that its newest insert leaves."""

    cells: dict[Place, Any]
    """Each a `Cell`, or a `List`."""
    marker: Cell

    def seen(self, now_s: int, deleted_us: int) -> dict[str, Any] | None:
        """Return what a reader sees at a second; None: there is no row.

        :param deleted_us: timestamp of the newest tombstone upon the row; -1 for none.
        """

        def value(cell: Cell | List) -> Any:
            if isinstance(cell, List):
                return cell.seen(deleted_us)
            return cell.at(now_s) if cell.us > deleted_us else None

        values: dict[str, Any] = {}
        for place, cell in self.cells.items():
            if isinstance(place, str):
                values[place] = value(cell)
        for place, cell in self.cells.items():
            if isinstance(place, str):
                continue
            whole = self.cells.get(place.column)
            if whole is None or cell.us >= whole.us:
                found = _entries(values.get(place.column)) | {place.key: value(cell)}
                kept = {key: each for key, each in found.items() if each is not None}
                values[place.column] = kept or None
            else:
                values.setdefault(place.column, None)
        exists = value(self.marker) or any(each is not None for each in values.values())
        return values if exists else None


def _entries(collection: Any) -> dict[Any, Any]:
    """Return the elements of a collection, as it was written whole or as it is by now."""
    if not collection:
        return {}
    if isinstance(collection, dict):
        return collection
    pairs = isinstance(collection[0], tuple)
    return dict(collection) if pairs else dict.fromkeys(collection, IN_SET)


def written(
    values: Mapping[str, Any], changes: Mapping[str, str], new: Cell, *, clears: bool
) -> dict[Place, Cell | None]:
    """Return the cells that a row writes, None for one that stays as it is.

    :param values: by column, beside the key.
    :param changes: the collections to which elements are added, or from which they are taken out.
    :param new: a cell of the row; without a value where the row's life is over.
    :param clears: whether a null clears its cell.
    """
    gone = Cell(None, new.us)
    cells: dict[Place, Cell | None] = {}
    for column, value in values.items():
        if (change := changes.get(column)) is None:
            found = gone if value is None or new.value is None else new._replace(value=value)
            cells[column] = None if value is None and not clears else found
            continue
        for key, each in _entries(value).items():
            is_out = change == "remove" or new.value is None
            cells[Element(column, key)] = gone if is_out else new._replace(value=each)
    return cells


def newer(old: Cell | None, new: Cell, kind: pa.DataType) -> Cell:
    """Resolve two writes to one cell: of equal times a deletion wins, then what expires, later first."""
    if old is None or old == new:
        return new

    def rank(cell: Cell) -> tuple[int, bool, bool, int]:
        return cell.us, cell.value is None, cell.ends_s is not None, cell.ends_s or 0

    if rank(old) != rank(new):
        return max(old, new, key=rank)
    return max(old, new, key=lambda cell: _serialized(cell.value, kind))


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
