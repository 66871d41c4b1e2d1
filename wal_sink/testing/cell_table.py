"""A table of a `cell_store`: its rows, by the rules of `cell_rules`, and its tombstones."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa

from wal_sink.errors import InvalidRow
from wal_sink.testing.cell_rules import Cell, List, ListElement, Place, Row, newer

Key = tuple[Any, ...]


class CellTable:
    """The content of a table. A deleted row, or range of rows, is a tombstone with a timestamp.

    It hides every cell up to that, also one that is written later.

    :param columns: empty: it has those that come.
    :param lists: those that are lists and not frozen.
    """

    def __init__(self, keys: str, columns: str, lists: Collection[str] = ()) -> None:
        self.keys = tuple(keys.split(","))
        self.columns = tuple(filter(None, columns.split(",")))
        self.rows: dict[Key, Row] = {}
        """Every cell that was written, also those that a tombstone hides."""
        self.tombstones: dict[Key, int] = {}
        """Timestamps of deletions, by the first values of the key, or all of them."""
        self._ballot_us = 0
        self._lists = lists
        self._numbers = itertools.count()

    def has(self, column: str) -> bool:
        """Whether the table has a column."""
        return not self.columns or column in self.columns

    def refuse_null(self, row: Mapping[str, Any], *, deletes: bool) -> None:
        """Refuse a null in the key, unless a delete has none but at its end.

        :raises InvalidRow: naming the first such column.
        """
        given = [row[name] is not None for name in self.keys]
        if not given[0] or given != sorted(given, reverse=True) or not (deletes or all(given)):
            name = self.keys[given.index(False)]
            raise InvalidRow(f"Key column {name} is null", "Filter such rows out.", column=name)

    def visible(self, now_s: int) -> dict[Key, dict[str, Any]]:
        """Return what a reader of the table sees at a second, by key."""
        seen = {key: row.seen(now_s, self.deleted_us(key)) for key, row in self.rows.items()}
        return {key: values for key, values in seen.items() if values is not None}

    def ballot_us(self, now_us: int) -> int:
        """Return the timestamp of a row with a condition: the server's, later than any before."""
        self._ballot_us = max(now_us, self._ballot_us + 1)
        return self._ballot_us

    def exists(self, key: Key, us: int) -> bool:
        """Whether a reader of the table sees a row at a time."""
        row = self.rows.get(key)
        return row is not None and row.seen(us // 1_000_000, self.deleted_us(key)) is not None

    def delete(self, key: Key, us: int) -> None:
        """Delete a row, or a range; the key has nulls at its end then."""
        prefix = tuple(value for value in key if value is not None)
        self.tombstones[prefix] = max(us, self.tombstones.get(prefix, -1))

    def upsert(
        self, key: Key, inserted: Cell | None, cells: Mapping[Place, Cell | None], schema: pa.Schema
    ) -> None:
        """Write the cells of a row.

        :param inserted: its marker; None: it is an update, which leaves none.
        :param cells: None for one that stays as it is.
        :param schema: of the rows, which has the types of the cells.
        """
        row = self.rows.get(key, Row({}, Cell(None, -1)))
        found = dict(row.cells)
        for name, cell in cells.items():
            if cell is None:
                found.setdefault(name, Cell(None, 0))
            elif name in self._lists:
                found[name] = self._list(found.get(name), cell)
            else:
                kind = schema.field(name).type if isinstance(name, str) else pa.int64()
                found[name] = newer(found.get(name), cell, kind)
        marker = row.marker if inserted is None else newer(row.marker, inserted, pa.bool_())
        self.rows[key] = Row(found, marker)

    def _list(self, before: Any, cell: Cell) -> List:
        """Write a list, as the server does: each time with elements of its own."""
        values = cell.value or ()
        elements = (ListElement(next(self._numbers), value, cell.us) for value in values)
        new = List(cell.us - 1, tuple(elements))
        return before.merged(new) if isinstance(before, List) else new

    def deleted_us(self, key: Key) -> int:
        """Return the newest deletion of a row, or of a range that it is in; -1 for none."""
        prefixes = (key[:length] for length in range(1, len(key) + 1))
        return max(self.tombstones.get(prefix, -1) for prefix in prefixes)
