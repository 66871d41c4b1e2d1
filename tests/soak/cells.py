"""The checker of the soak: computes the value of each cell from the source and the log.

The log has the order of the rows of the flushed attempts, and so their write timestamps; the source has their
values. The checker uses no code of the sink.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence, Set
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from state_backends import open_backend
from tests.protocol import raw
from tests.soak.changes import is_bad, is_long

_ON_ITS_WAY_S = 32
"""The maximum time of a request in seconds: a node stalls for 20. A cell may expire later by that time, see
docs/protocol/README.md#where-cassandra-differs.
"""

Key = tuple[int, ...]
KEYS = {"customers": ("day", "customer_id")}


class Cell(NamedTuple):
    """A value, its write timestamp in microseconds, and the second at which it expires."""

    us: int
    value: Any
    ends_s: int


class Logged(NamedTuple):
    """A row of a flushed attempt."""

    epoch: int
    us: int
    """The write timestamp; 0 for a row that a task has refused."""
    values: dict[str, Any]
    """The values by column; a delete has only its key."""
    refused: bool
    """True if a task has refused the row."""

    @property
    def is_delete(self) -> bool:
        """Return True for a delete that was not refused."""
        return self.values["seq"] is None


def logged(log: Path) -> Iterator[Logged]:
    """Yield the rows of each flushed epoch."""
    for manifest in _kept(log):
        us = manifest["first_us"]
        for value, is_refused in ((manifest["refused"], True), (manifest["segments"], False)):
            for segment in value:
                held = segment.get("data")  # the manifest contains a small segment
                source = (
                    pa.BufferReader(held) if held else pa.memory_map(str(log / segment["path"]))
                )
                table = pa.ipc.open_file(source).read_all()
                rows = table["row"].to_pylist() if is_refused else table.select(_READ).to_pylist()
                for row in rows:
                    values = row | {"tag": "tag" in _names(table)}
                    yield Logged(manifest["epoch"], 0 if is_refused else us, values, is_refused)
                    us += not is_refused


def _kept(log: Path) -> Iterator[dict[str, Any]]:
    """Yield the manifest of each flushed epoch, the newest first; `wal.retention` keeps all of them."""
    state = raw.state(open_backend(str(log)))
    assert state["targets"][0]["mark"]["epoch"] == state["last"]["epoch"]
    path = state["last"]["manifest"]
    while path:
        manifest = raw.parsed((log / path).read_bytes())
        yield manifest
        path = manifest["predecessor"].get("manifest", "")


def refused_by_server(log: Path) -> set[int]:
    """Return the write timestamps of the rows in `refused/` that Cassandra has refused."""
    matches = (re.fullmatch(r"1-\w+-(\d+)\.arrow", path.name) for path in log.glob("refused/*/*"))
    return {int(match[1]) for match in matches if match}


_READ = ["seq", "attempt", "customerId", "day"]


def _names(segment: pa.Table) -> list[str]:
    """Return the names of the DataFrame's columns."""
    names: list[str] = segment.schema.names
    return [field.name for field in segment.schema.field("row").type] if "row" in names else names


class Expected(NamedTuple):
    """The expected content of the tables, and the faults of the log."""

    cells: dict[str, dict[Key, dict[str, Cell]]]
    deleted: dict[str, dict[Key, int]]
    """The write timestamp of the newest delete of each key, by table."""
    bad: int
    """The number of rows that the tasks must refuse."""
    late: int
    """The number of rows that only the server refuses."""
    wrong: list[str]
    """Descriptions of the rows that are wrong in the log."""
    mixed: list[int]
    epochs: int
    changes: int


def expected(
    changes: Sequence[dict[str, Any]], rows: Sequence[Logged], refused_us: Set[int]
) -> Expected:
    """Merge the rows, cell by cell: the larger timestamp wins.

    :param refused_us: the write timestamps of the rows that the server has refused.
    """
    cells: dict[str, dict[Key, dict[str, Cell]]] = {table: defaultdict(dict) for table in KEYS}
    deleted: dict[str, dict[Key, int]] = {table: {} for table in KEYS}
    attempts = defaultdict(set)
    bad, late = 0, list[dict[str, Any]]()
    stamps = Counter(row.us for row in rows if not row.refused)
    wrong = [f"{n} rows have timestamp {us}" for us, n in stamps.items() if n > 1]
    wrong += _not_once(changes, rows)
    for row in rows:
        if row.is_delete:
            for table, keys in KEYS.items():
                key = tuple(row.values[_NAMES.get(name, name)] for name in keys)
                deleted[table][key] = max(row.us, deleted[table].get(key, 0))
            continue
        attempts[row.epoch].add(row.values["attempt"])
        change = changes[row.values["seq"]]
        bad += is_bad(change)
        if row.refused != is_bad(change):
            wrong.append(f"change {change['seq']}: refused is {row.refused}")
        if is_bad(change):
            continue
        if row.us in refused_us:
            late.append(change)
            continue
        for table, keys in KEYS.items():
            values = _values(change, row)
            key = tuple(values.pop(name) for name in keys)
            for name, value in values.items():
                present = cells[table][key].get(name)
                if present is None or present.us < row.us:
                    cells[table][key][name] = Cell(row.us, value, _second(change["expires"]))
    wrong += [f"change {item['seq']} was refused" for item in late if not is_long(item)]
    mixed = sorted(epoch for epoch, words in attempts.items() if len(words) > 1)
    epochs = len({row.epoch for row in rows})
    return Expected(cells, deleted, bad, len(late), wrong, mixed, epochs, len(changes))


def _not_once(changes: Sequence[dict[str, Any]], rows: Sequence[Logged]) -> list[str]:
    """Return the changes that are not in the log exactly once; a delete is identified by its key."""
    present = Counter(
        (row.values["customerId"], row.values["day"]) if row.is_delete else row.values["seq"]
        for row in rows
    )
    wanted = Counter(
        (change["customerId"], change["day"])
        if change["op"] == "D" and not is_bad(change)
        else change["seq"]
        for change in changes
    )
    missing, extra = wanted - present, present - wanted
    return [f"{item} is missing" for item in missing] + [f"{item} is extra" for item in extra]


_NAMES = {"customer_id": "customerId"}


def _values(change: dict[str, Any], row: Logged) -> dict[str, Any]:
    """Return the values that a change writes; a null leaves its cell unchanged."""
    values = {
        "customer_id": change["customerId"],
        "day": change["day"],
        "amount": Decimal(change["amount"]),
        "points": int(change["points"]),
        "device": uuid.UUID(bytes=change["device"]),
        "city": change["city"],
        "seq": change["seq"],
        "attempt": row.values["attempt"],
        "epoch": row.epoch,
        "note": change["note"],
        "tag": change["tag"] if row.values["tag"] else None,
    }
    return {name: value for name, value in values.items() if value is not None}


def _second(expires: datetime) -> int:
    """Return the second at which a cell expires, rounded up."""
    return -int(-expires.timestamp() // 1)


class CellVerdict(NamedTuple):
    """The result of the comparison: numbers of cells."""

    expected: int
    found: int
    missing: int
    extra: int
    values: int
    """Cells with a wrong value."""
    times: int
    """Cells with a wrong write timestamp."""
    ttls: int
    """Cells that expire more than a second too early, or more than `_ON_ITS_WAY_S` too late."""
    examples: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """Return True if every cell is right."""
        return not any(self[2:7])


Found = dict[str, dict[Key, dict[str, tuple[Any, int, tuple[int, int] | None]]]]
"""For each table, key and column: the value, the write timestamp, and the first and last second at which the
cell may expire, since a read takes time.
"""


def compare(wanted: Expected, tables: Found, now_s: float) -> CellVerdict:
    """Compare every cell.

    :param now_s: the time at which the tables were read; no cell may expire within seconds of it.
    """
    counts: Counter[str] = Counter()
    examples: list[str] = []

    def note(what: str, text: object) -> None:
        counts[what] += 1
        if sum(example.startswith(what) for example in examples) < 5:
            examples.append(f"{what}: {text}")

    for table in KEYS:
        living = _living(wanted, table, now_s)
        present = {
            (key, name): cell
            for key, cells in tables[table].items()
            for name, cell in cells.items()
        }
        counts["expected"] += len(living)
        counts["found"] += len(present)
        for where in living.keys() - present.keys():
            note("missing", (table, where, living[where]))
        for where in present.keys() - living.keys():
            note("extra", (table, where, present[where]))
        for where in living.keys() & present.keys():
            value, us, ends = present[where]
            cell = living[where]
            if value != cell.value:
                note("values", (table, where, cell, present[where]))
            if us != cell.us:
                note("times", (table, where, cell, present[where]))
            if ends is None or not ends[0] - _ON_ITS_WAY_S <= cell.ends_s <= ends[1] + 1:
                note("ttls", (table, where, cell, present[where]))
    names = ("expected", "found", "missing", "extra", "values", "times", "ttls")
    return CellVerdict(**{name: counts[name] for name in names}, examples=tuple(examples))


def _living(wanted: Expected, table: str, now_s: float) -> dict[tuple[Key, str], Cell]:
    """Return the cells that no newer delete covers and that have not expired."""
    return {
        (key, name): cell
        for key, cells in wanted.cells[table].items()
        for name, cell in cells.items()
        if cell.us > wanted.deleted[table].get(key, 0) and cell.ends_s > now_s
    }
