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
TABLE_KEY, ROW_KEY = ("day", "customer_id"), ("day", "customerId")
"""The columns of the primary key, in the table and in the DataFrame."""


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
    """The expected content of the table, and the faults of the log."""

    cells: dict[Key, dict[str, Cell]]
    deleted: dict[Key, int]
    """The write timestamp of the newest delete of each key."""
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
    cells: dict[Key, dict[str, Cell]] = defaultdict(dict)
    deleted: dict[Key, int] = {}
    attempts = defaultdict(set)
    bad, late = 0, list[dict[str, Any]]()
    stamps = Counter(row.us for row in rows if not row.refused)
    wrong = [f"{n} rows have timestamp {us}" for us, n in stamps.items() if n > 1]
    wrong += _not_once(changes, rows)
    for row in rows:
        if row.is_delete:
            key = tuple(row.values[name] for name in ROW_KEY)
            deleted[key] = max(row.us, deleted.get(key, 0))
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
        merged = cells[tuple(change[name] for name in ROW_KEY)]
        for name, value in _values(change, row).items():
            if name not in merged or merged[name].us < row.us:
                merged[name] = Cell(row.us, value, _second(change["expires"]))
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


def _values(change: dict[str, Any], row: Logged) -> dict[str, Any]:
    """Return the values that a change writes, without its key; a null leaves its cell unchanged."""
    values = {
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


Found = dict[Key, dict[str, tuple[Any, int, tuple[int, int] | None]]]
"""For each key and column: the value, the write timestamp, and the first and last second at which the
cell may expire, since a read takes time.
"""


def compare(wanted: Expected, table: Found, now_s: float) -> CellVerdict:
    """Compare every cell.

    :param now_s: the time at which the table was read; no cell may expire within seconds of it.
    """
    counts: Counter[str] = Counter()
    examples: list[str] = []

    def note(what: str, text: object) -> None:
        counts[what] += 1
        if sum(example.startswith(what) for example in examples) < 5:
            examples.append(f"{what}: {text}")

    living = _living(wanted, now_s)
    present = {(key, name): cell for key, cells in table.items() for name, cell in cells.items()}
    for where in living.keys() - present.keys():
        note("missing", (where, living[where]))
    for where in present.keys() - living.keys():
        note("extra", (where, present[where]))
    for where in living.keys() & present.keys():
        cell, (value, us, ends) = living[where], present[where]
        if value != cell.value:
            note("values", (where, cell, present[where]))
        if us != cell.us:
            note("times", (where, cell, present[where]))
        if ends is None or not ends[0] - _ON_ITS_WAY_S <= cell.ends_s <= ends[1] + 1:
            note("ttls", (where, cell, present[where]))
    names = ("missing", "extra", "values", "times", "ttls")
    return CellVerdict(
        expected=len(living),
        found=len(present),
        **{name: counts[name] for name in names},
        examples=tuple(examples),
    )


def _living(wanted: Expected, now_s: float) -> dict[tuple[Key, str], Cell]:
    """Return the cells that no newer delete covers and that have not expired."""
    return {
        (key, name): cell
        for key, cells in wanted.cells.items()
        for name, cell in cells.items()
        if cell.us > wanted.deleted.get(key, 0) and cell.ends_s > now_s
    }
