"""The CPU time of processes and their children, from /proc."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")


class _Stat(NamedTuple):
    parent: int
    own_s: float
    reaped_s: float
    """The CPU time of children that have ended."""


def of(pid: int) -> float:
    """Return the CPU seconds of a process and its ended children."""
    stat = _stat(pid)
    return stat.own_s + stat.reaped_s if stat else 0.0


def of_tree(root: int) -> float:
    """Return the CPU seconds of a process and all its descendants."""
    return sum(stat.own_s + stat.reaped_s for stat in _tree(root).values())


def descendants(root: int) -> set[int]:
    """Return the ids of all descendants of a process."""
    return {*_tree(root)} - {root}


def _tree(root: int) -> dict[int, _Stat]:
    stats = {pid: stat for pid in _pids() if (stat := _stat(pid))}
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent, []).append(pid)
    tree, remaining = {}, [root]
    while remaining:
        pid = remaining.pop()
        if pid in stats:
            tree[pid] = stats[pid]
            remaining += children.get(pid, [])
    return tree


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def _stat(pid: int) -> _Stat | None:
    """Read `/proc/<pid>/stat`, see proc(5); return None if the process has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name of the program may contain blanks and parentheses.
    fields = text.rpartition(")")[2].split()
    user, system, reaped_user, reaped_system = (int(field) / _TICKS for field in fields[11:15])
    return _Stat(int(fields[1]), user + system, reaped_user + reaped_system)
